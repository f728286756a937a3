"""What messages tell people to type works as printed: every hint of the source is parsed by the real command line."""

import ast
import re
import shlex
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest

import dear
from commands import LEAVES, ROOT_COMMAND
from dear.backbone import hub
from dear.backbone.load import load_clip
from dear.cli import commands, main
from dear.cli.usage import UsageError
from dear.errors import BackboneError, ConfigError, HubError, RoleMapError, backbone, is_typed, option, setting, typed
from dear.methods.registry import get_method, list_methods
from dear.options import reading
from dear.roles.known import shipped_roles
from dear.storage.locks import mark

ROOT = Path(__file__).resolve().parents[3]
SOURCES = sorted((ROOT / "src" / "dear").rglob("*.py"))
COMMAND = re.compile(r"'(dear [a-z][^'{}]*)'")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]+")


def strings_of(tree: ast.AST) -> list[str]:
    """Every text of a file that is no docstring; what is put into it is {}."""
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and node.body
        if isinstance(node.body[0], ast.Expr) and isinstance(node.body[0].value, ast.Constant)
    }
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            found.append("".join(p.value if isinstance(p, ast.Constant) else "VALUE" for p in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs | inside:
            found.append(node.value)
    return [text for text in found if " " in text]  # sentences, not names


def calls_of(tree: ast.AST) -> list[tuple[str, dict[str, object]]]:
    """Every `option(…)` and `setting(…)` with its words; a value that is not written there is VALUE."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("option", "setting"):
            values = {
                word.arg: word.value.value if isinstance(word.value, ast.Constant) else "1"
                for word in node.keywords
                if word.arg
            }
            if values:
                found.append((node.func.id, values))
    return found


def command_of(words: list[str]):
    """The command that some words begin with, and the words that are left."""
    command, place = ROOT_COMMAND, 0
    while place < len(words) and (child := getattr(command, "commands", {}).get(words[place])):
        command, place = child, place + 1
    return command, words[place:], place


class Parsed(Exception):
    """The words of a command are options now."""


def parse(command, hint: str, arguments: list[str]) -> None:
    """Read a command's words as its options, and do nothing with them."""

    def read(*values):
        reading.read(*values)
        raise Parsed

    context = command.make_context(hint, arguments)
    with patch.object(commands, "read", read), suppress(Parsed):
        command.invoke(context)


def check_command(hint: str) -> None:
    """Raise if a command cannot be typed as it is printed, up to arguments that are left for the reader to add."""
    words = shlex.split(hint)[1:]
    command, rest, depth = command_of(words)
    assert depth, f"{hint}: there is no such command"
    if hasattr(command, "commands"):
        assert not rest, f"{hint}: {command.name} has no {rest[0]}"
        return
    known = {name: parameter for parameter in command.params for name in parameter.opts}
    while rest:
        word = rest.pop(0)
        if word.startswith("-"):
            assert word in known, f"{hint}: no option {word}"
            if not getattr(known[word], "is_flag", False):
                assert rest, f"{hint}: {word} has no value"
                rest.pop(0)
    if re.search(r"[A-Z]{3,}|world", hint):  # it shows all arguments: it must be whole
        arguments = shlex.split(hint)[1:][depth:]
        parse(command, hint, ["1" if one == "VALUE" else one for one in arguments])


def check_options(words: list[str]) -> None:
    """Raise if no command takes these options with these values."""
    takes = []
    for command in LEAVES.values():
        known = {name for parameter in command.params for name in parameter.opts}
        if all(word in known for word in words if word.startswith("--")):
            takes.append(command)
    assert takes, f"no command has {' '.join(words)}"
    problems = []
    for command in takes:
        try:
            command.make_context("hint", list(words), resilient_parsing=True)
        except Exception as error:  # noqa: BLE001
            problems.append(error)
        else:
            return
    raise AssertionError(f"{' '.join(words)}: {problems[0]}")


def hints() -> tuple[list[str], list[str], list[list[str]]]:
    """Commands, options by name, and options with their values, of the whole source."""
    commands, names, whole = [], [], []
    for path in SOURCES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for text in strings_of(tree):
            commands += COMMAND.findall(text)
            names += OPTION.findall(text)
        with typed():
            whole += [
                shlex.split({"option": option, "setting": setting}[kind](**values)) for kind, values in calls_of(tree)
            ]
    return commands, names, whole


FOREIGN = {"--address", "--head", "--logdir", "--no-sandbox"}
"""Options of other programs."""


@pytest.mark.covers("F5")
def test_every_hint_can_be_typed_as_printed():
    commands, names, whole = hints()
    for hint in commands:
        check_command(hint)
    known = {name for command in (*LEAVES.values(), ROOT_COMMAND) for one in command.params for name in one.opts}
    old = {"--batch", "--root", "--most-images", "--top", "--count", "--attribute", "--strategy"}
    for name in names:
        assert name in known | old | FOREIGN | {"--help", "--install-completion", "--show-completion"}, name
    for words in whole:
        check_options(words)
    counts = len(commands), len(names), len(whole)
    assert counts[0] > 30, counts
    assert counts[2] > 25, counts


def test_the_check_can_fail():
    check_command("dear eval RUN DATA")
    check_command("dear ls settings METHOD")
    for wrong in ("dear evaluate RUN", "dear train DATA --outt RUN", "dear ls things", "dear train DATA --out"):
        with pytest.raises(AssertionError):
            check_command(wrong)
    for wrong in ("dear eval RUN DATA MORE", "dear train DATA", "dear train DATA --out RUN --shots many"):
        with pytest.raises((UsageError, ConfigError), match=r".+"):
            check_command(wrong)
    with pytest.raises(AssertionError, match="no command has"):
        check_options(["--role", "MAP"])
    assert calls_of(ast.parse("f\"{option(roles='A', resume=True)}\"")) == [("option", {"roles": "A", "resume": True})]
    assert strings_of(ast.parse('"a doc"\nx = f"see \'dear eval {run} DATA\'."')) == ["see 'dear eval VALUE DATA'."]


def test_settings_in_hints_are_settings_of_a_method():
    known = {name for method in list_methods() for name in get_method(method).Config.model_fields}
    for path in SOURCES:
        for kind, values in calls_of(ast.parse(path.read_text(encoding="utf-8"))):
            assert kind == "option" or set(values) <= known, path


@pytest.mark.covers("F5")
def test_the_same_message_in_two_languages():
    assert option(roles="MAP", resume=True) == "roles='MAP', resume=True"
    assert setting(mask="all_mixed") == "mask='all_mixed'"
    assert backbone("ViT-B-16", "openai") == "load_clip('ViT-B-16', pretrained='openai')"
    with typed():
        assert is_typed()
        assert option(roles="my map", data_root="D", resume=True) == "--roles 'my map' --data-root D --resume"
        assert setting(mask="all_mixed", strict_routing=True) == "--set mask=all_mixed --set strict_routing=true"
        assert backbone("ViT-B-16", "openai") == "--clip ViT-B-16 --pretrained openai"
    assert not is_typed()


@pytest.mark.covers("F5")
def test_a_missing_role_map_is_told_in_the_words_of_the_place():
    sizes = SimpleNamespace(vision_layers=12)
    clip = SimpleNamespace(weights_sha256="0", name="my", pretrained=None, geometry=sizes)
    with pytest.raises(RoleMapError, match=r"find one with roles='auto', or train without one: mask='all_mixed'\.$"):
        shipped_roles(clip)
    with (
        typed(),
        pytest.raises(RoleMapError, match=r"with --roles auto, or train without one: --set mask=all_mixed\.$"),
    ):
        shipped_roles(clip)


@pytest.mark.covers("F5")
def test_openai_is_suggested_first():
    with typed(), pytest.raises(BackboneError) as error:
        load_clip("ViT-B-16-quickgelu")
    assert "give --pretrained openai, or --pretrained random" in str(error.value)
    with typed(), pytest.raises(BackboneError, match="or --clip ViT-B-16-quickgelu --pretrained openai for OpenAI's"):
        load_clip("ViT-B-16")
    with typed(), pytest.raises(BackboneError, match="try --device cpu"):
        load_clip("world", device="nowhere")


@pytest.fixture
def asked_hub(monkeypatch, tmp_path):
    asked = []

    class Session:
        def stream(self, method, url, headers, timeout):
            asked.append((url, timeout))
            raise ConnectionError("Name or service not known")

    monkeypatch.setattr(hub, "get_session", Session)
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path))
    return asked


@pytest.mark.covers("F9", "F11")
def test_a_hub_out_of_reach_is_asked_once_and_named(asked_hub, monkeypatch):
    monkeypatch.setattr("dear.backbone.load._create", lambda *_: pytest.fail("a model was built"))
    with typed(), pytest.raises(HubError) as error:
        load_clip("ViT-B-16-quickgelu", "openai")
    for part in (
        "https://huggingface.co/timm/vit_base_patch16_clip_224.openai",
        "open_clip_config.json and open_clip_model.safetensors",
        "--clip local-dir:FOLDER",
    ):
        assert part in str(error.value)
    with pytest.raises(HubError, match=r"huggingface\.co/some/where .* with load_clip\('local-dir:FOLDER'\)"):
        load_clip("hf-hub:some/where")
    assert len(asked_hub) == 2
    assert all(timeout <= 5 for _, timeout in asked_hub)


def test_commands_speak_to_people_who_type_and_python_to_those_who_write_it(monkeypatch, capsys, tmp_path):
    mark(tmp_path / "run", "run")
    (tmp_path / "run" / "run.json").touch()
    monkeypatch.setattr(sys, "argv", ["dear", "train", "world-blooms", "--out", str(tmp_path / "run")])
    with pytest.raises(SystemExit):
        main()
    assert "add --resume to continue, or --overwrite to start over" in capsys.readouterr().err
    with pytest.raises(dear.errors.OverwriteError, match="add resume=True to continue, or overwrite=True"):
        dear.fit("world-blooms", out=tmp_path / "run")
