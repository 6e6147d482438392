"""Subcommands updateKvConfig, deleteKvConfig, getNamesrvConfig and updateNamesrvConfig."""

from __future__ import annotations

from typing import Final

from routekeeper.remoting.properties import split_properties

from ..directory import EachAnswer
from ..errors import NotApplied
from .context import Context
from .kept import check_kept, check_setting
from .options import OUTPUT, Arguments, Command, Option


def _update_kv(context: Context, args: Arguments) -> None:
    answers = context.run(context.client.admin.kv_put(args.text("s"), args.text("k"), args.text("v")))
    if not context.report(answers):
        context.line("create or update kv config to namespace success.")


def _delete_kv(context: Context, args: Arguments) -> None:
    if not context.report(context.run(context.client.admin.kv_delete(args.text("s"), args.text("k")))):
        context.line("delete kv config from namespace success.")


def _get_config(context: Context, _args: Arguments) -> None:
    answers = context.run(context.client.admin.namesrv_config())
    settings = {
        answer.addr: split_properties(answer.response.body)
        for answer in answers
        if answer.response is not None
    }
    context.json(settings)
    for addr, table in settings.items():
        context.line(f"============{addr}============")
        for name, value in table.items():
            context.line(f"{name:<50}=  {value}")
    context.report(answers)


def _update_config(context: Context, args: Arguments) -> None:
    name, value, admin = args.text("k"), args.text("v"), context.client.admin
    check_setting(name, value)
    answers = context.run(admin.update_namesrv_config({name: value}))
    shown = {answer.addr: answer for answer in context.run(admin.namesrv_config())}
    checked = [_checked(answer, shown[answer.addr], name, value) for answer in answers]
    done = [answer.addr for answer in checked if answer.error is None]
    if done:
        context.line(f"update name server config success![{', '.join(done)}]")
        context.line(f"{name} : {value}")
    context.report(checked)


def _checked(changed: EachAnswer, shown: EachAnswer, name: str, value: str) -> EachAnswer:
    """Return a nameserver's answer to a change, or an error if the nameserver did not make the change.

    Args:
        shown: The nameserver's settings after the change.
    """
    if changed.error is not None:
        return changed
    if shown.response is None:
        return shown
    try:
        check_kept(split_properties(shown.response.body), name, value)
    except NotApplied as error:
        return EachAnswer(changed.addr, None, error)
    return changed


_NAMESPACE: Final = Option(short="s", long="namespace", description="set the namespace", required=True)
_KEY: Final = Option(short="k", long="key", description="set the key name", required=True)

COMMANDS: Final = (
    Command(
        name="updateKvConfig",
        description="Create or update KV config.",
        options=(
            _NAMESPACE,
            _KEY,
            Option(short="v", long="value", description="set the key value", required=True),
        ),
        run=_update_kv,
    ),
    Command(
        name="deleteKvConfig",
        description="Delete KV config.",
        options=(_NAMESPACE, _KEY),
        run=_delete_kv,
    ),
    Command(
        name="getNamesrvConfig",
        description="Get configs of name server.",
        options=(OUTPUT,),
        run=_get_config,
        only_reads=True,
    ),
    Command(
        name="updateNamesrvConfig",
        description="Update configs of name server.",
        options=(
            Option(short="k", long="key", description="config key", required=True),
            Option(short="v", long="value", description="config value", required=True),
        ),
        run=_update_config,
    ),
)
