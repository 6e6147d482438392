"""Plots as inline SVG, small enough to stand side by side on a desk and one below the other on a phone."""

import io
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, Final

import matplotlib as mpl
import numpy as np

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from bench.report.findings import FAULT_NAMES, GENERATOR_CORES_MAX, MODES, Comparison
from bench.report.intervals import weighted_percentile
from bench.report.marts import Window
from bench.report.wording import UNIT_SUFFIX

COLOURS: Final = {
    "independent": "#D55E00",
    "raft": "#0072B2",
}  # Okabe-Ito: told apart by colour-blind readers
_WIDTH_IN: Final = 4.7
_STYLE: Final[Any] = {  # matplotlib types the keys as one literal of hundreds
    "svg.fonttype": "none",
    "svg.hashsalt": "mqbench",  # the same input gives the same bytes
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#b5b5b5",
    "axes.labelcolor": "#444",
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.titlesize": 10,
    "axes.titlepad": 10,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#ececec",
    "grid.linewidth": 0.8,
    "xtick.color": "#666",
    "ytick.color": "#666",
    "lines.solid_joinstyle": "round",
    "figure.constrained_layout.use": True,
}
_PERCENTILE_TICKS: Final = (0.0, 0.5, 0.9, 0.99, 0.999, 0.9999)


def percentile_curves(title: str, rows: Mapping[str, Mapping[str, Sequence[tuple[float, int]]]]) -> str:
    """Draw latency over percentile per mode: the merged runs as a line, the range of the runs as a band.

    Args:
        rows: Mode to run to (ms, count).
    """
    fewest = min((sum(n for _, n in each) for runs in rows.values() for each in runs.values()), default=0)
    last = 1 - 10 / max(fewest * 10, 100)  # beyond, a run has less than one observation
    quantiles = np.concatenate([np.linspace(0, 0.9, 46), 1 - np.logspace(-1, math.log10(1 - last), 40)[1:]])
    with mpl.rc_context(_STYLE):
        figure, axes = plt.subplots(figsize=(_WIDTH_IN, 3.0))
        x = -np.log10(1 - quantiles)
        for mode in MODES:
            each = [_percentiles(run, quantiles) for run in rows.get(mode, {}).values() if run]
            if not each:
                continue
            merged = _percentiles([row for run in rows[mode].values() for row in run], quantiles)
            axes.fill_between(
                x, np.min(each, axis=0), np.max(each, axis=0), color=COLOURS[mode], alpha=0.15, lw=0
            )
            axes.plot(x, merged, color=COLOURS[mode], lw=1.8, label=mode)
        axes.set_yscale("log")
        axes.autoscale_view()
        _time_axis(axes.yaxis)
        ticks = [tick for tick in _PERCENTILE_TICKS if tick <= last + 1e-9]
        axes.xaxis.set_major_locator(FixedLocator([-math.log10(1 - tick) for tick in ticks]))
        axes.set_xticklabels([f"{100 * tick:g} %" for tick in ticks])
        axes.set_xlim(0, x[-1])
        axes.set_xlabel("percentile of requests")
        _legend(axes)
        return _figure(figure, title, f"{title}: latency by percentile and mode")


def timeline(
    title: str, rows: Mapping[str, Mapping[int, Sequence[float]]], windows: Iterable[Window], *, label: str
) -> str:
    """Draw a value per second: the median of the runs as a line, their range as a band, faults shaded.

    Args:
        rows: Mode to second to one value per run.
    """
    with mpl.rc_context(_STYLE):
        figure, axes = plt.subplots(figsize=(_WIDTH_IN, 2.6))
        top = 0.0
        for mode in MODES:
            seconds = sorted(rows.get(mode, {}))
            if not seconds:
                continue
            values = [rows[mode][second] for second in seconds]
            middle = [float(np.median(each)) for each in values]
            top = max(top, max(map(max, values)))
            axes.fill_between(
                seconds,
                [min(v) for v in values],
                [max(v) for v in values],
                color=COLOURS[mode],
                alpha=0.15,
                lw=0,
            )
            axes.plot(seconds, middle, color=COLOURS[mode], lw=1.5, label=mode)
        axes.set_ylim(0, top * 1.2 or 1)
        _shade(axes, windows)
        axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.set_xlabel("seconds since measuring began")
        axes.set_ylabel(label)
        _legend(axes)
        return _figure(figure, title, f"{title}: {label} over time, by mode")


def reached(title: str, values: Mapping[str, Sequence[float]], *, label: str) -> str:
    """Draw which share of the values (ms) is at or below each time; infinite ones never count as reached."""
    with mpl.rc_context(_STYLE):
        figure, axes = plt.subplots(figsize=(_WIDTH_IN, 2.8))
        for mode in MODES:
            every = values.get(mode, ())
            finite = np.sort([value for value in every if math.isfinite(value)])
            if len(finite):
                share = 100 * np.arange(1, len(finite) + 1) / len(every)
                keep = np.unique(np.linspace(0, len(finite) - 1, 300).astype(int))
                axes.step(
                    np.maximum(finite[keep], 1e-3),
                    share[keep],
                    where="post",
                    color=COLOURS[mode],
                    lw=1.8,
                    label=mode,
                )
        axes.set_xscale("log")
        axes.autoscale_view()
        _time_axis(axes.xaxis)
        axes.set_ylim(0, 102)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} %"))
        axes.set_xlabel(label)
        _legend(axes)
        return _figure(figure, title, f"{title}: share reached over time, by mode")


def dots(title: str, rows: Sequence[tuple[str, Comparison]], *, limit: float | None = None) -> str:
    """Draw one row per comparison: each run a dot, the estimate a bar with its interval.

    Args:
        rows: Short label and comparison; all of one unit.
        limit: Where to draw a dashed line.
    """
    unit = rows[0][1].unit
    with mpl.rc_context(_STYLE):
        figure, axes = plt.subplots(figsize=(_WIDTH_IN, 0.62 * len(rows) + 0.95))
        top = 0.0
        for place, (name, comparison) in enumerate(rows):
            axes.text(
                0.0, place - 0.36, name, transform=axes.get_yaxis_transform(), va="center", color="#333"
            )
            for offset, mode in ((-0.06, "independent"), (0.2, "raft")):
                estimate = comparison.of(mode)
                if estimate is None:
                    continue
                finite = [value for value in comparison.per_run[mode] if math.isfinite(value)]
                y = place + offset
                axes.plot(
                    finite,
                    [y] * len(finite),
                    "o",
                    ms=4,
                    mew=0,
                    color=COLOURS[mode],
                    alpha=0.35,
                    clip_on=False,
                )
                top = max([top, *finite])
                if math.isfinite(estimate.value):
                    if (
                        estimate.low is not None
                        and estimate.high is not None
                        and math.isfinite(estimate.high)
                    ):
                        axes.plot(
                            [estimate.low, estimate.high], [y, y], color=COLOURS[mode], lw=2, clip_on=False
                        )
                        top = max(top, estimate.high)
                    axes.plot(
                        [estimate.value],
                        [y],
                        "|",
                        ms=10,
                        mew=2.4,
                        color=COLOURS[mode],
                        clip_on=False,
                        label=mode if mode not in axes.get_legend_handles_labels()[1] else None,
                    )
        if limit is not None:
            top = max(top, limit)
            axes.axvline(limit, color="#888", lw=1, ls="--")
        axes.set_xlim(0, top * 1.06 or 1)
        axes.set_ylim(len(rows) - 0.55, -0.7)
        axes.yaxis.set_major_locator(NullLocator())
        axes.spines["left"].set_visible(False)
        axes.grid(axis="y", visible=False)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value, unit)))
        _legend(axes)
        return _figure(figure, title, f"{title}, by mode, with intervals")


def generator_limit() -> float:
    """Return the limit of :func:`dots` for the generator's CPU, in % of a core."""
    return 100 * GENERATOR_CORES_MAX


def _percentiles(rows: Iterable[tuple[float, int]], quantiles: Any) -> Any:
    counts: dict[float, int] = defaultdict(int)
    for value, n in rows:
        counts[value] += n
    values = np.array(sorted(counts))
    weights = np.array([[counts[value] for value in sorted(counts)]])
    return np.array([weighted_percentile(values, weights, quantile)[0] for quantile in quantiles])


def _tick(value: float, unit: Any) -> str:
    if value == 0:
        return "0"
    if unit == "ms":
        return (
            f"{value / 1000:g} s"
            if abs(value) >= 1000
            else f"{value:g} ms"
            if value >= 1
            else f"{value * 1000:g} µs"
        )
    return f"{value:g}{UNIT_SUFFIX[unit]}"


def _time_axis(axis: Any) -> None:
    low, high = axis.get_view_interval()
    few_decades = low > 0 and high / low < 300
    axis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0) if few_decades else (1.0,), numticks=8))
    axis.set_major_formatter(FuncFormatter(lambda value, _: _tick(float(f"{value:.3g}"), "ms")))
    axis.set_minor_formatter(NullFormatter())


def _shade(axes: Any, windows: Iterable[Window]) -> None:
    """Shade each kind of fault over the middle of its runs' times."""
    by_kind: dict[tuple[int, str], list[Window]] = defaultdict(list)
    for window in windows:
        by_kind[window.fault, window.kind].append(window)
    for (_, kind), same in sorted(by_kind.items()):
        begin = float(np.median([window.begin_ns for window in same])) / 1e9
        end = float(np.median([window.end_ns or window.until_ns for window in same])) / 1e9
        axes.axvspan(begin, end, color="#000", alpha=0.07, lw=0)
        short = (
            FAULT_NAMES.get(kind, kind)
            .split(" and ")[0]
            .replace(" nameservers", "")
            .replace(" nameserver", "")
        )
        axes.text(begin, axes.get_ylim()[1], f" {short}", va="top", color="#555", fontsize=8)


def _legend(axes: Any) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        axes.legend(
            handles,
            labels,
            loc="lower left",
            bbox_to_anchor=(0.0, 1.0),
            ncols=2,
            frameon=False,
            fontsize=8.5,
            handlelength=1.2,
            borderaxespad=0.1,
            columnspacing=1.0,
        )


_figures = 0


def _figure(figure: Any, title: str, description: str) -> str:
    """Return a ``<figure>`` with its title and one ``<svg>``, whose ids are made unique within the page."""
    global _figures
    _figures += 1
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None}, transparent=True)
    plt.close(figure)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>f{_figures}-", text)
    text = text.replace("'DejaVu Sans'", "system-ui, 'Segoe UI', Roboto, 'DejaVu Sans'")
    text = text.replace("<svg ", f'<svg role="img" aria-label="{escape(description, quote=True)}" ', 1)
    return f"<figure><figcaption>{escape(title)}</figcaption>{text}</figure>"
