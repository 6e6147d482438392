"""``routekeeper.bench.micro.report_scale`` reads the sizes of a JVM's heap from the JVM's log."""

from routekeeper.bench.micro.report_scale import heap_of

LOG = """\
[0.008s][info][gc] Using Serial
[1.204s][info][gc] GC(0) Pause Young (Allocation Failure) 409M->31M(973M) 21.5ms
[9.811s][info][gc] GC(1) Pause Full (Metadata GC Threshold) 1312M->90M(2048M) 188.120ms
[9.911s][info][gc] GC(2) Pause Young (Allocation Failure) 500M->120M(1024M) 8.001ms
"""


def test_heap_is_the_most_that_lay_in_it_before_it_was_cleared() -> None:
    assert heap_of(LOG) == (1312, 2048)
    assert heap_of("[0.008s][info][gc] Using G1\n") == (0, 0)
