"""`dear paper` from the command line: the plan, bad input as one sentence, a stop that leaves no traceback."""

import signal
import socket
import subprocess
import sys
import time

import pytest

from helpers import heed_interrupts, varied_roles
from needs import needs, needs_posix
from papers import tiny_imagenet


def test_the_plan_of_the_mini_paper(dear_, tmp_path):
    code, stdout, _ = dear_("paper", "--mini", "--out", tmp_path / "out", "--plan")
    assert code == 0
    assert "Table 2: base-to-novel generalisation (table-2): 0 of 28 cells done" in stdout
    assert "274 cells: 0 done, 274 to do, about" in stdout
    assert not (tmp_path / "out").exists()


def test_the_plan_of_the_full_paper(dear_, tmp_path):
    code, stdout, _ = dear_("paper", "--full", "--out", tmp_path / "out", "--data-root", tmp_path, "--plan")
    assert code == 0
    assert f"missing imagenet: put it in {tmp_path / 'imagenet'}. Get the ILSVRC 2012 images" in stdout
    assert "https://www.image-net.org" in stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "Give either --mini (the embedded world) or --full (the paper's own data sets)."),
        (["--mini", "--full"], "Give either --mini"),
        (["--mini", "--pretrained", "openai"], "name it with --clip NAME"),
        (["--mini", "--seeds", "a"], "--seeds is 'a': give whole numbers from 0 on."),
        (["--full"], "name it, --data-root FOLDER"),
        (["--mini", "--resume", "--overwrite"], "choose one of them"),
        (["--mini", "--cells", "4/3"], "--cells is '4/3': give a share such as 3/20."),
        (["--mini", "--cells", "1/2", "--overwrite"], "--overwrite would discard what other shares have done"),
        (["--mini", "--cells", "1/2", "--on", "ray"], "leave it or --on ray out."),
        (["--mini", "--on", "spark"], "--on is 'spark': give ray, or ray and the address of a head node"),
        (["--mini", "--gpus", "1"], "--gpus 1.0 is for a cluster: add --on ray, or leave it out."),
    ],
)
def test_bad_input_is_one_sentence(dear_, tmp_path, words, message):
    plan = ["--plan"] if words == ["--full"] else []
    code, stdout, stderr = dear_("paper", "--out", tmp_path / "out", *words, *plan)
    assert (code, stdout) == (2, "")
    assert message in stderr
    assert stderr.count("\n") == 1


def test_a_cluster_that_does_not_answer_is_refused_before_anything_is_written(dear_, tmp_path):
    needs("ray")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"  # nobody listens there any more
    code, stdout, stderr = dear_("paper", "--mini", "--out", tmp_path / "out", "--on", f"ray:{address}")
    assert (code, stdout) == (2, "")
    assert stderr.startswith(f"dear: No Ray answers at {address}: start one there")
    assert stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_storage_as_output_folder_is_refused_with_the_command_that_copies(dear_, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words in (
        ["paper", "--mini"],
        ["bench", "base-to-novel", "--data", "world-textures"],
        ["train", "world-textures"],
    ):
        code, stdout, stderr = dear_(*words, "--out", "s3://bucket/grid")
        assert (code, stdout) == (2, "")
        sentence = (
            "s3://bucket/grid is not a folder: write to one and copy it with 'dear sync FOLDER s3://bucket/grid'."
        )
        assert stderr == f"dear: {sentence}\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.slow  # the same of a grid: test_bench_cli.test_control_c_ends_all_jobs
def test_control_c_leaves_what_can_be_resumed_and_no_traceback(tiny_folders, tiny_clips, tmp_path):
    needs_posix()
    varied_roles(tiny_clips["shallow"]).save(tmp_path / "roles.json")
    out = tmp_path / "out"
    tiny_imagenet(tmp_path / "data")
    words = [
        "paper",
        "--full",
        "--out",
        out,
        "--data-root",
        tmp_path / "data",
        "--seeds",
        1,
        "--epochs",
        3_000,
        "--jobs",
        2,
    ]
    words += ["--clip", f"local-dir:{tiny_folders['shallow']}", "--pretrained", "random", "--workers", 1]
    words += ["--roles", tmp_path / "roles.json"]
    command = [sys.executable, "-c", "from dear.cli import main; main()", *map(str, words)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=heed_interrupts) as process:
        until = ("runs/dear-*/checkpoint.safetensors", "cells/zero_shot-*.json")  # one is halfway, the other done
        while process.poll() is None and not all(list(out.glob(f"grids/base-to-novel/{one}")) for one in until):
            time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate()
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr
    assert stderr.strip().endswith("dear: stopped; what was saved so far is kept, resume with --resume.")
    assert list(out.glob("grids/base-to-novel/cells/zero_shot-*.json"))
