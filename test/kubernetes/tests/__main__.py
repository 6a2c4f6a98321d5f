"""usage: python3 -m tests [FILTER]: only tests with one of these words, separated by commas, in their names."""
import sys

from tests import copies, examples, limits, many, moving, removal, runner, scale, scripts, upgrade, volumes

# In this order: each finds what those before it installed.
MODULES = [scripts, volumes, limits, scale, upgrade, copies, many, examples, removal, moving]

if __name__ == "__main__":
    sys.exit(1 if runner.run(MODULES, sys.argv[1] if len(sys.argv) > 1 else "") else 0)
