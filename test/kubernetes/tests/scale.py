"""Many claims at once, on the default installation."""
import os
import time

from tests import api
from tests.limits import LIMITED, size_of
from tests.objects import claim, settled_volumes, volumes_of
from tests.runner import say, test


def projects():
    """The projects that have a limit."""
    return set(os.listdir(f"{LIMITED}/.nfs-csi/quota/applied"))


@test
def two_hundred_claims_are_bound_each_with_its_limit_and_all_are_gone_in_the_end():
    names = [f"many-{number}" for number in range(200)]
    volumes_before, projects_before = settled_volumes(), projects()
    begun = time.monotonic()
    for name in names:
        claim(name, "limited", size="2Mi")
    asked = time.monotonic()
    # Now and then only: to list hundreds of objects is work for the cluster's one processor.
    volumes = api.wait("all claims to be bound", 300, volumes_of(*names), every=3)
    bound_after = time.monotonic() - asked
    sizes = {size_of(volume) for volume in volumes}
    assert sizes == {2 << 20}, sizes
    deleting = time.monotonic()
    for name in names:
        api.delete("PersistentVolumeClaim", name)
    deleted = time.monotonic()
    api.wait("all volumes to be gone", 300, lambda: len(api.items("PersistentVolume")) == volumes_before,
             every=3)
    gone_after = time.monotonic() - deleted
    api.wait("their projects to be free", 300, lambda: projects() <= projects_before, every=3)
    say(f"200 claims: asked for in {asked - begun:.1f} s, all bound {bound_after:.1f} s after that; "
        f"deleted in {deleted - deleting:.1f} s, all gone {gone_after:.1f} s after that")
