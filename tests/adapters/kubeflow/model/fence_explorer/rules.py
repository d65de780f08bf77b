# SPDX-License-Identifier: Apache-2.0
"""The rules of the fence, the admission check and holds, by name, and where each is shown to be needed.

:mod:`.spoilt` takes a rule out under the same name. A rule that it can't show names the test that does.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.adapters.kubeflow.model import test_hold_sync

PROTOCOL = {
    "check-pods": "the check waits for every pod object that is left",
    "check-proof": "the check waits for the proof of every recorded pod's death",
    "check-hold": "the check heeds the recorded hold",
    "check-guard": "the check judges only what is reserved, active and not evicted",
    "check-rv": "Ready is written for the judged Workload alone",
    "check-reset": "a Ready that waits for a reservation is taken back to be judged again",
    "a-raise": "A is raised for each reservation",
    "a-once": "a retry for the same reservation doesn't raise A again",
    "a-used": "A is raised above that of the last execution",
    "a-fence": "pods are lifted only under an A of their admission",
    "a-retry": "an admission that nobody judged is taken back",
    "record-rv": "the record is written for the judged TrainJob alone",
    "record-first": "pods are recorded before they are lifted",
    "close-uid": "a replaced pod closes the execution",
    "close-end": "a recorded pod that is ending, has failed or is gone closes the execution",
    "close-gen": "another JobSet or restart closes the execution",
    "close-adm": "a raised A closes the execution",
    "success-open": "a recorded pod that has succeeded doesn't close the execution",
    "all-dead": "a new execution waits until all of the old one are dead",
    "gated-counts": "a recorded pod that is still gated counts as alive",
    "foreign": "a pod that somebody else let through counts as alive",
    "other-sub": "a pod of another submission counts as alive",
    "r-above": "R grows with every execution",
    "vanish": "an object that has vanished proves no death",
    "gc-no-proof": "Failed by garbage collection proves no death",
    "settled": "a node is a proof only when it has been Ready for long",
    "unknown-node": "a pod of an unknown node waits for the nodes there are",
    "ledger": "the ledger has a copy of the record before the first lift",
    "ledger-stop": "a stop leaves the unproven in the ledger",
    "lift-guard": "pods enter the record only while admitted",
    "lift-hold": "pods enter the record only while nobody holds",
    "reread": "TrainJob and Workload are read again before the first lift",
    "lift-gate": "a lift fails when the gate is no longer there",
    "hold-record-first": "a hold and a release are written on the TrainJob first, on the Workload second",
    "sync": "half a hold and half a release are completed",
}
"""What each rule says."""

SHOWN_ELSEWHERE: dict[str, Callable[..., None]] = {
    # Kueue can reserve anew before the reset, so that "a-retry" must cover it: the reset only spares an admission.
    "check-reset": test_hold_sync.test_a_ready_that_waits_for_a_release_or_a_reservation_is_put_back,
}
"""The test of each rule without which nothing breaks in the explored world."""
