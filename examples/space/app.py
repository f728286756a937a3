"""A Hugging Face Space with an adapter: the folder `adapter` beside this file, or the small world of drawings.

Copy this folder into the Space, and the files of a run (adapter_config.json, its tensors, README.md) into `adapter`.
"""

import os
from pathlib import Path

import dear

adapter = Path(__file__).parent / "adapter"

if __name__ == "__main__":
    dear.open_app(
        adapter if adapter.is_dir() else None,
        host="0.0.0.0",  # a Space is a container behind the proxy of Hugging Face
        port=int(os.environ.get("PORT", "7860")),
        browser=False,
    )
