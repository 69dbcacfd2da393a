"""Kill, resume and resize a loader at random, and count its rows.

schedule.py ─► ranks.py ─► run.py ─► report.py
(drawn from    (legs, in   (audit:   (comparison with
 a seed)        processes)  all of    the expected rows,
                            it)       and a table)
"""

from headrace.testing.auditing.report import AuditReport, Finding, Outcome
from headrace.testing.auditing.run import audit
from headrace.testing.auditing.schedule import Leg, Schedule, Size

__all__ = ["AuditReport", "Finding", "Leg", "Outcome", "Schedule", "Size", "audit"]
