"""Runs tests, one after the other or several at once, and says how each ended.

A test is a function with the decorator `test`; its name is a sentence of what holds. Tests of one module share what its
`set_up` installed. PARALLEL in a module says how many of them run at once (default 1): in most of them waiting is all.
"""
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor

from tests import diagnosis

_lock = threading.Lock()


def test(function):
    function.is_test = True
    return function


def tests_of(module, wanted):
    names = [name for name, value in vars(module).items() if getattr(value, "is_test", False)]
    words = wanted.split(",")
    return [getattr(module, name) for name in names if any(word in f"{module.__name__}::{name}" for word in words)]


def say(text):
    with _lock:
        print(text, flush=True)


def run(modules, wanted):
    """Gives the number of tests that failed."""
    passed, failed, begun = 0, 0, time.monotonic()
    while modules and not tests_of(modules[-1], wanted):
        modules = modules[:-1]
    for module in modules:
        chosen = tests_of(module, wanted)
        # What a module installs is what the next ones find: it is done even if none of its tests is wanted.
        if hasattr(module, "set_up") and not _ends_well(f"{module.__name__}::set_up", module.set_up, quiet=True):
            failed += max(1, len(chosen))
            say(f"{module.__name__}: not set up: {len(chosen)} tests count as failed")
            break
        with ThreadPoolExecutor(getattr(module, "PARALLEL", 1)) as pool:
            outcomes = list(pool.map(lambda one: _ends_well(f"{one.__module__}::{one.__name__}", one), chosen))
        passed += outcomes.count(True)
        failed += outcomes.count(False)
    verdict = "FAILED" if failed else "ok"
    say(f"\ntest result: {verdict}. {passed} passed; {failed} failed; 0 ignored; finished in {time.monotonic() - begun:.0f} s")
    if not passed + failed:
        say("no test has that in its name")
        return 1
    return failed


def _ends_well(name, function, quiet=False):
    name = name.removeprefix("tests.")
    begun = time.monotonic()
    try:
        function()
    except Exception:  # pylint: disable=broad-except # whatever it is, the test has failed
        say(f"test {name} ... FAILED ({time.monotonic() - begun:.1f} s)\n{traceback.format_exc()}")
        diagnosis.write(name)
        return False
    if quiet:
        say(f"{name} took {time.monotonic() - begun:.1f} s")
    else:
        say(f"test {name} ... ok ({time.monotonic() - begun:.1f} s)")
    return True
