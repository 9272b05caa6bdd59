#!/usr/bin/env python3
"""Opens memory.pickle files with PyTorch's own reader: everything that `python -m torch.cuda._memory_viz` does with one.

Run: python tools/check_snapshot.py FILE...   (needs torch; tests/e2e/test_memory_pages.py does not, and replays events)
"""
import pickle
import sys

from torch.cuda import _memory_viz as viz


def check(path):
    with open(path, "rb") as file:
        snapshot = pickle.load(file)
    (segment,) = snapshot["segments"]
    events = snapshot["device_traces"][0]
    summary = viz.segsum(snapshot)  # asserts that the blocks tile the segment
    trace = viz.trace(snapshot)
    # A line "b = a[OFFSET:SIZE]" for each that was allocated inside the segment a.
    assert trace.count(" = a[") == sum(event["action"] == "alloc" for event in events), trace[:2000]
    for page in (viz.trace_plot(snapshot), viz.segment_plot(snapshot)):
        assert "<script" in page
    # A flame graph is drawn by a script from the network: the lines that it would get are enough.
    flames = viz.memory(snapshot, format_flamegraph=lambda lines: lines)
    live = sum(int(line.rsplit(" ", 1)[1]) for line in flames.splitlines())
    assert live == segment["total_size"], (live, segment["total_size"])
    print("%s: %d events, %d of %d bytes alive at the end\n%s" %
          (path, len(events), segment["allocated_size"], segment["total_size"], summary.strip()))


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        check(argument)
