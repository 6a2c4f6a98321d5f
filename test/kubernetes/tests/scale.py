"""Many claims at once, on the default installation."""
import time

from tests import api
from tests.objects import claim, volumes_of
from tests.runner import say, test


@test
def two_hundred_claims_are_bound_within_90_s_and_gone_within_60_s():
    names = [f"many-{number}" for number in range(200)]
    volumes_before = len(api.items("PersistentVolume"))
    begun = time.monotonic()
    for name in names:
        claim(name, "nfs")
    asked = time.monotonic()
    # Now and then only: to list hundreds of objects is work for the cluster's one processor.
    api.wait("all claims to be bound", 300, volumes_of(*names), every=3)
    bound_after = time.monotonic() - asked
    deleting = time.monotonic()
    for name in names:
        api.delete("PersistentVolumeClaim", name)
    deleted = time.monotonic()
    api.wait("all volumes to be gone", 300, lambda: len(api.items("PersistentVolume")) == volumes_before,
             every=3)
    gone_after = time.monotonic() - deleted
    say(f"200 claims: asked for in {asked - begun:.1f} s, all bound {bound_after:.1f} s after that; "
        f"deleted in {deleted - deleting:.1f} s, all gone {gone_after:.1f} s after that")
    assert bound_after <= 90, f"{bound_after:.1f} s"
    assert gone_after <= 60, f"{gone_after:.1f} s"
