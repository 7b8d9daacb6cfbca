"""Figures of a benchmark for people: lines and a plot."""

from __future__ import annotations

from rmqha.cli.render import Printer, Text
from rmqha.ops.bench.figures import Figures
from rmqha.ops.bench.histogram import PERCENTILES, LatencyHistogram

BAR_WIDTH = 40


def show(figures: Figures, out: Printer) -> None:
    """Print the figures as lines and a plot."""
    wanted = "" if figures.rate is None else f" of {figures.rate:,.0f}/s wanted"
    part = " (interrupted)" if figures.interrupted else ""
    rate = f"{figures.per_second:,.1f}/s{wanted}, {figures.per_second * figures.size_bytes / 1e6:,.2f} MB/s"
    sent = f"{figures.done:,} messages of {figures.size_bytes:,} bytes in {figures.elapsed_s:.1f} s"
    lines = [f"{figures.kind}: {sent}, {rate}{part}"]
    if not figures.done and "bytes" in figures.extra:
        lines = [f"{figures.kind}: watched for {figures.elapsed_s:.1f} s{part}, {figures.extra['bytes']:,} bytes came"]
    told = ", ".join(f"{name} {count:,}" for name, count in figures.counts.items() if count)
    lines += [told] if told else []
    for line in lines:
        out.print(Text(line))
    if figures.latency.count:
        show_times(out, figures.measured, figures.latency)
        plot(out, figures.latency)
    if figures.late is not None and figures.late.count:
        show_times(out, "began late by", figures.late)
    for count, text in sorted(figures.reasons.values(), reverse=True):
        out.print(Text(f"{count:,} × {text}", "yellow"))
    if warning := figures.warning():
        out.print(Text(warning, "yellow"))


def show_times(out: Printer, what: str, histogram: LatencyHistogram) -> None:
    shown = "  ".join(f"p{percent:g} {histogram.percentile(percent) / 1000:.2f}" for percent in PERCENTILES)
    out.print(Text(f"{what}, ms: {shown}  max {histogram.max / 1000:.2f}"))


def plot(out: Printer, histogram: LatencyHistogram) -> None:
    """Print a bar for each doubling, the longest BAR_WIDTH wide; a bar that is not empty has at least one column."""
    bars = list(histogram.bars())
    most = max(count for _, _, count in bars)
    gap = False
    for low, behind, count in bars:
        if not count:
            if not gap:
                out.print(Text(f"{'…':>13}"))
            gap = True
            continue
        gap = False
        length = -(-count * BAR_WIDTH // most)
        out.print(Text(f"{low / 1000:>10.3f} – {behind / 1000:>10.3f} ms {'█' * length} {count:,}"))
