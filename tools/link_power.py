#!/usr/bin/env python3
"""What links between cards take of the matmuls' speed, by the power they need: docs/gpu.md.

Every card multiplies 8192 x 4096 x 14336 in bf16 all the time, which holds it at its limit of power, while a copy engine
reads so many bytes from the next card every so many seconds. Printed for each of a list of such reads: milliseconds of a
matmul, SM clock, power and temperature of every card, over four seconds after one of settling.

  tools/link_power.py      needs two GPUs that reach each other, PyTorch and nvidia-smi
"""
import subprocess
import threading
import time

import torch

MIB = 1 << 20
READS = [(0, 0), (1024, .005), (64 * MIB, .01), (1024, .25), (0, 0), (64 * MIB, .25), (1024, .005), (0, 0)]
LAUNCHES = 40  # of a sample
QUERY = "index,clocks.sm,power.draw.instant,temperature.gpu"


class Run:
    def __init__(self, cards):
        self.cards, self.read, self.stop = cards, READS[0], False
        self.matmuls = [[] for _ in range(cards)]  # (when, seconds)
        self.sensors = []  # (when, card, MHz, W, C)

    def multiply(self, card):
        torch.cuda.set_device(card)
        a = torch.randn(8192, 4096, device="cuda", dtype=torch.bfloat16)
        b = torch.randn(4096, 14336, device="cuda", dtype=torch.bfloat16) * .02
        c = torch.empty(8192, 14336, device="cuda", dtype=torch.bfloat16)
        while not self.stop:
            begin, done = time.time(), torch.cuda.Event()
            for _ in range(LAUNCHES):
                torch.mm(a, b, out=c)
            done.record()
            while not done.query():
                time.sleep(.0005)
            self.matmuls[card].append((time.time(), (time.time() - begin) / LAUNCHES))

    def copy(self, card):
        torch.cuda.set_device(card)
        there = torch.zeros(64 * MIB, dtype=torch.uint8, device=f"cuda:{(card + 1) % self.cards}")
        here = torch.zeros(64 * MIB, dtype=torch.uint8, device=f"cuda:{card}")
        stream = torch.cuda.Stream()
        while not self.stop:
            count, period = self.read
            if count:
                with torch.cuda.stream(stream):
                    here[:count].copy_(there[:count], non_blocking=True)
                stream.synchronize()
            time.sleep(period or .01)

    def watch(self, _):
        smi = subprocess.Popen(["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader,nounits", "-lms", "100"],
                               stdout=subprocess.PIPE, text=True)
        for line in smi.stdout:
            if self.stop:
                break
            self.sensors.append([time.time()] + [float(x) for x in line.split(",")])
        smi.kill()


def mean(values):
    values = list(values)
    return sum(values) / max(1, len(values))


def main():
    run = Run(torch.cuda.device_count())
    if run.cards < 2:
        raise SystemExit("link_power: two GPUs are needed")
    work = [(run.watch, 0)] + [(f, card) for f in (run.multiply, run.copy) for card in range(run.cards)]
    for function, card in work:
        threading.Thread(target=function, args=(card,), daemon=True).start()
    time.sleep(10)
    for run.read in READS:
        time.sleep(1)
        begin = time.time()
        time.sleep(4)
        cards = []
        for card in range(run.cards):
            ms = 1e3 * mean(s for t, s in run.matmuls[card] if t > begin)
            seen = [s for s in run.sensors if s[0] > begin and s[1] == card]
            cards.append("%.4f ms %4.0f MHz %5.1f W %4.1f C" % ((ms,) + tuple(mean(s[i] for s in seen) for i in (2, 3, 4))))
        print("%9d bytes every %5.3f s: " % run.read + "; ".join(cards), flush=True)
    run.stop = True


if __name__ == "__main__":
    main()
