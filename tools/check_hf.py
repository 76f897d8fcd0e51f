#!/usr/bin/env python3
"""Holds the download commands that Tessera prints against the Hub's own tool: that it has the command and the options.

  tools/check_hf.py --build build     (needs huggingface_hub, for hf)
Downloads nothing. Exit status 1 where hf does not know what is printed.
"""
import argparse
import os
import re
import subprocess
import sys
import tempfile

KEYS = {"model_name_or_path": "nobody/no-model", "dataset": "nobody/no-data", "init_adapter": "nobody/no-adapter"}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--build", required=True)
    a = p.parse_args()
    with tempfile.TemporaryDirectory() as work:
        job = os.path.join(work, "job.yaml")
        with open(job, "w") as f:
            f.write("".join(f"{key}: {value}\n" for key, value in KEYS.items()))
        said = subprocess.run([f"{a.build}/tessera", "plan", job], capture_output=True, text=True).stderr
    lines = re.findall("`(hf [^`]*)`", said)
    if len(lines) != len(KEYS):
        sys.exit(f"expected a line for each of {', '.join(KEYS)} in\n{said}")
    wrong = 0
    for line in lines:
        words = line.split()
        text = subprocess.run([*words[:2], "--help"], capture_output=True, text=True)
        missing = [w for w in words if w.startswith("--") and not re.search(rf"{w}\b", text.stdout)]
        wrong += text.returncode != 0 or bool(missing)
        print(f"{line}: {'not known: ' + ' '.join(missing or words[:2]) if text.returncode or missing else 'known'}")
    return wrong > 0


sys.exit(main())
