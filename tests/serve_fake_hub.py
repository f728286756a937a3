"""Serve the imitated hub until Ctrl-C: `python tests/serve_fake_hub.py --port 8900`."""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from open_clip.pretrained import get_pretrained_cfg

from fake_hub import FakeHub, Fault, rate_limit
from random_weights import random_files


def main() -> None:
    """Serve random weights of one backbone under its true repository and file names, until Ctrl-C."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--port", type=int, default=8900)
    parser.add_argument("--clip", default="ViT-B-16-quickgelu")
    parser.add_argument("--pretrained", default="openai")
    parser.add_argument("--folder", type=Path, help="where to write the weights, to use them again")
    parser.add_argument("--bin", action="store_true", help="only a pickled file")
    parser.add_argument("--gated", action="store_true")
    parser.add_argument("--reset-after", type=int, metavar="BYTES")
    parser.add_argument("--times", type=int, help="number of times that it goes wrong")
    parser.add_argument("--rate-limit", type=int, metavar="SECONDS")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds per MB")
    words = parser.parse_args()
    repository, _, file = get_pretrained_cfg(words.clip, words.pretrained)["hf_hub"].rpartition("/")
    names = (file or ("open_clip_pytorch_model.bin" if words.bin else "open_clip_model.safetensors"),)
    folder = words.folder or Path(tempfile.mkdtemp(prefix="fake-hub-"))
    files = random_files(words.clip, folder / words.clip, names=names)
    with FakeHub(words.port) as hub:
        hub.add(repository, files, license="mit", gated=words.gated)
        limited = {"status": 429, "headers": rate_limit(words.rate_limit)} if words.rate_limit else {}
        fault = Fault(reset_after=words.reset_after, times=words.times, chunk=1 << 20, pause=words.pause, **limited)
        hub.misbehave(repository, names[0], fault)
        sys.stdout.write(f"HF_ENDPOINT={hub.endpoint} HF_HUB_DISABLE_XET=1  serves {repository}/{names[0]}\n")
        sys.stdout.flush()
        shown = 0
        while True:
            time.sleep(0.2)
            for one in hub.requests[shown:]:
                sys.stdout.write(f"{one}\n")
                shown += 1
            sys.stdout.flush()


if __name__ == "__main__":
    main()
