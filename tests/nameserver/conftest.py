"""Lets tests be coroutine functions."""

from tests.remoting.async_tests import pytest_pyfunc_call as pytest_pyfunc_call
