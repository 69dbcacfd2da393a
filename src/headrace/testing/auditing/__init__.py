"""Killing, resuming and resizing a loader at random, and counting its rows.

draw a schedule ─► run its legs ─► judge the rows ─► report
 (``schedule``)    (``legs``, and   (``judge``)       (``report``)
                    ``rank`` in the
                    child processes)
"""

from headrace.testing.auditing.report import AuditReport, Finding, Outcome
from headrace.testing.auditing.run import audit
from headrace.testing.auditing.schedule import Leg, Schedule, Size

__all__ = ["AuditReport", "Finding", "Leg", "Outcome", "Schedule", "Size", "audit"]
