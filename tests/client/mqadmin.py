"""Our mqadmin, run inside the process of the tests."""

from __future__ import annotations

import io

from routekeeper.client.mqadmin.__main__ import main


def mqadmin(*argv: str, namesrv: str = "", **environment: str) -> tuple[int, str, str]:
    """Run a command line of mqadmin, and return its exit code, standard output and error output.

    Args:
        namesrv: Value of the environment variable ``NAMESRV_ADDR``.
        environment: All other environment variables.
    """
    out, err = io.StringIO(), io.StringIO()
    given = environment | ({"NAMESRV_ADDR": namesrv} if namesrv else {})
    code = main(argv, environment=given, out=out, err=err)
    return code, out.getvalue(), err.getvalue()
