"""Every sentence of the README and of the tutorial has a test that executes what it says, named here beside it.

A sentence that no test can fail (a pointer, an advice, a wish) stands among NO_CLAIM. A new sentence fails here until
somebody has said which test holds it; a test that goes fails here too.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TUTORIAL_RUN = "process/commands/test_tutorial.py::test_each_command_of_the_tutorial_prints_what_it_says"
README_RUN = "process/commands/test_tutorial.py::test_the_readmes_five_lines_do_what_they_say"
README_OUTPUT = "process/commands/test_tutorial.py::test_the_readme_shows_output_of_the_tutorial"
LINKS = "test_pages.py::test_every_relative_link_leads_somewhere"
RELEASE = "test_supply_chain.py::test_a_release_is_whole_and_two_builds_of_it_are_the_same_bytes"
LIGHT = "test_supply_chain.py::test_the_light_environment_has_what_runs_and_no_spark"
DRILLS = "chaos/test_drills.py::test_a_drill_loses_nothing_in_cp"
KILLS = "chaos/test_kills.py::test_masters_killed_in_a_row_take_no_acknowledged_message_in_cp"
CUT_OFF = "chaos/test_partition.py::test_a_master_cut_off_with_a_client_acknowledges_nothing_in_cp"
CUT_OFF_AP = "chaos/test_partition.py::test_a_master_cut_off_with_a_client_loses_only_its_fork_in_ap"
NO_CONTROLLERS = "chaos/test_controllers.py::test_a_group_goes_on_without_name_server_and_controller"
CLIENT = "interop/clients/test_java_client.py::test_every_acknowledged_message_is_consumed_though_the_master_is_killed"
MIXED = "interop/groups/test_mixed_group.py::test_apaches_broker_follows_ours_takes_over_and_is_followed"
STORE = "interop/groups/test_store.py::test_ours_then_apaches_then_ours"
COMMANDS = "interop/tools/test_every_command.py::test_every_command_is_asked"
NO_CLAIM = ""

README: dict[str, tuple[str, ...]] = {
    "A message-queue broker group that does not stop": (KILLS, DRILLS),
    "It speaks Apache RocketMQ 5's bytes": (CLIENT, MIXED, COMMANDS, STORE),
    "Written in Python.": (NO_CLAIM,),
    "You need Linux, Python 3.11 or newer, and make.": ("test_supply_chain.py::test_floors_do_not_sink",),
    "`make env` makes `.venv` with the command": (LIGHT,),
    "`make env FULL=1` adds Spark": (LIGHT,),
    "`make env` also builds the native kernel": ("kernel/test_native.py::test_bytes_of_any_kind",),
    "Without it brokers run their kernel in Python.": ("kernel/test_native.py::test_bytes_of_any_kind",),
    "After the kill, `rmqha send` and `rmqha status`": (README_OUTPUT,),
    "The [tutorial](docs/start/tutorial.md) goes on": (TUTORIAL_RUN,),
    "In ten minutes it shows which replica": (TUTORIAL_RUN,),
    "`rmqha down` stops the group": (README_RUN,),
    "`rmqha up` also prints the address of a web page.": (TUTORIAL_RUN, "process/test_page.py"),
    "It shows the cluster live": ("process/test_page.py",),
    "There is no package on an index yet.": (NO_CLAIM,),
    "`make dist` makes a wheel, its checksums": (RELEASE,),
    "The wheel needs no checkout": (RELEASE,),
    "`rmqha up` works from it too.": (RELEASE,),
    "`podman build -t rmqha .` makes a container image": (LINKS,),
    "Two more commands show what it does": (NO_CLAIM,),
    "`make demo MODE=ap` shows": ("process/commands/test_demo.py",),
    "`make demo INPUT=my.jsonl` takes": ("process/commands/test_demo.py",),
    "| | `haMode": (NO_CLAIM,),
    "| `SEND_OK` means": (
        "ha/test_replica.py::test_ap_acknowledges_alone_and_cp_does_not",
        "ha/test_replica.py::test_cp_refuses_before_the_write_while_the_confirmed_set_is_below_a_majority",
    ),
    "| one replica of three dies": (KILLS, "chaos/test_kills.py::test_masters_killed_in_a_row_leave_equal_logs_in_ap"),
    "| the master is cut off": (CUT_OFF, CUT_OFF_AP),
    "| a majority is gone": (
        "ha/test_replica.py::test_cp_refuses_before_the_write_while_the_confirmed_set_is_below_a_majority",
        "chaos/test_drills.py::test_more_than_the_master_is_hit",
    ),
    "| all controllers are gone": (
        NO_CONTROLLERS,
        "ha/test_replica.py::test_cp_without_controllers_accepts_only_while_the_whole_confirmed_set_is_reachable",
    ),
    "| consumers see": (
        "ha/test_scenarios.py::test_a_cut_off_master_goes_on_showing_what_was_confirmed_and_nothing_more",
    ),
    "Not guaranteed: exactly-once.": (NO_CLAIM,),
    "A retried send may be stored twice": ("model/test_message.py", KILLS),
    "[All of it](docs/start/guarantees.md).": (LINKS,),
    "Every server binds 127.0.0.1": ("model/test_config_warnings.py::test_loopback_warns_of_nothing",),
    "Two virtual cores, Python 3.11": (NO_CLAIM,),
    "[performance.md](docs/operate/performance.md) has": (LINKS,),
    "[measurements.md](docs/operate/measurements.md) says": (LINKS,),
    "`make bench` repeats them.": ("test_claims.py::test_every_figure_of_the_readme_has_its_program",),
    "| figure | ours | theirs": (NO_CLAIM,),
    "**Acknowledged messages stay.**": (NO_CLAIM,),
    "A send that waits while the set shrinks": (NO_CLAIM,),
    "Our broker checks when it acknowledges": ("ha/test_replica.py::test_ap_acknowledges_alone_and_cp_does_not",),
    "**It is back at once.**": (NO_CLAIM,),
    "**It says what is wrong.**": (TUTORIAL_RUN, "ops/health"),
    "`rmqha explain` says why": (TUTORIAL_RUN,),
    "`rmqha drill` injects faults": (DRILLS,),
    "**The log is a table.**": (TUTORIAL_RUN, "spark/test_source.py"),
    "Stay with RocketMQ if you need": (LINKS,),
    "A single sender, batches, and pops": (LINKS,),
    "Groups can [move both ways]": ("interop/groups/test_rolling_migration.py", STORE),
    "[docs/README.md](docs/README.md): all pages": ("test_pages.py::test_every_page_stands_in_the_index",),
    "[Python client](docs/use/python-client.md)": (LINKS,),
    "[Operating a cluster](docs/operate/operating.md)": (LINKS,),
    "[Architecture](docs/internals/architecture.md)": (LINKS,),
    "Apache-2.0. rmqha is not": (NO_CLAIM,),
    "RocketMQ is a trademark of it.": (NO_CLAIM,),
}
TUTORIAL: dict[str, tuple[str, ...]] = {
    "You start three brokers, send messages": (TUTORIAL_RUN,),
    "You need Linux and Python 3.11": ("test_supply_chain.py::test_floors_do_not_sink",),
    "Spark, in step 7, also needs": ("cli/diagnosis/test_doctor.py",),
    "All output on this page is real": (TUTORIAL_RUN,),
    "Times, ports, process ids and directories": (NO_CLAIM,),
    "So may the number of the replica": (NO_CLAIM,),
    "In the repository, `make env` makes": (LIGHT,),
    "Or install the wheel:": (RELEASE,),
    "Go to an empty directory.": (NO_CLAIM,),
    "Without a file, `rmqha up` starts": ("cli/local/test_up.py",),
    "It prints what this group promises": (TUTORIAL_RUN,),
    "The last line is the address of a page": (TUTORIAL_RUN, "process/test_page.py"),
    "Leave it open while you go on.": (NO_CLAIM,),
    "One replica is the master": (TUTORIAL_RUN,),
    "`SET` says that all three": ("ha/test_replica.py",),
    "`MAX` is the end of the log": (TUTORIAL_RUN,),
    "`CONFIRM` is how far consumers see.": ("ha/test_scenarios.py",),
    "`broker-a:2@0` is queue 2": ("cli/messaging/test_receive.py",),
    "A topic has several queues": (
        "interop/clients/test_consumers.py::test_order_is_kept_while_two_consumers_share_the_queues_and_the_master_dies",
    ),
    "Take the node that `status` calls master.": (NO_CLAIM,),
    "`kill` sends SIGKILL": (TUTORIAL_RUN,),
    "Send right after it.": (TUTORIAL_RUN,),
    "The message was acknowledged": (TUTORIAL_RUN,),
    "Every election raises the master epoch.": ("controller/elections",),
    "`health` compares what all nodes say.": ("ops/health",),
    "Where something is wrong it gives each reason": (TUTORIAL_RUN,),
    "Do what `health` says.": (TUTORIAL_RUN,),
    "The old master comes back as a slave.": (TUTORIAL_RUN,),
    "It compares its log with the new master's": (TUTORIAL_RUN,),
    "Every replica has the whole log": (TUTORIAL_RUN, STORE),
    "These commands need no broker.": ("cli/storage/test_log.py",),
    "They also work while one runs.": (TUTORIAL_RUN,),
    "Epoch 1 was written under the first master": (TUTORIAL_RUN,),
    "With Spark the log is a table:": (TUTORIAL_RUN,),
    "[What is guaranteed, and what is not](guarantees.md)": (LINKS,),
    "[Sending and reading from Python]": (LINKS,),
    "[Operating a cluster](../operate/operating.md)": (LINKS,),
    "`rmqha drill failover --n 3` kills": (DRILLS,),
}
PAGES = {"README.md": README, "docs/start/tutorial.md": TUTORIAL}
FIGURE = re.compile(r"^\| .+\| `(?P<program>[a-z ]+)` \|$")


def sentences(text: str) -> list[str]:
    """Sentences of a page in Markdown, items of its lists and rows of its tables; no headings, code and pictures."""
    found: list[str] = []
    prose = re.sub(r"^```.*?^```\n", "\n", text, flags=re.M | re.S)
    for part in re.split(r"\n\s*\n|\n(?=- )|\n(?=\|)", prose):
        words = " ".join(part.split())
        if not words or words.startswith(("#", "![", "|---")):
            continue
        one = [words] if words.startswith("|") else re.split(r"(?<=[.:;!])\s+(?=[A-Z\[`*(…])", words.removeprefix("- "))
        found += one
    return found


def figures(text: str) -> list[str]:
    """Programs that the rows of a table of figures name."""
    return [found["program"] for row in sentences(text) if (found := FIGURE.match(row))]


@pytest.mark.parametrize("page", PAGES)
def test_every_sentence_has_its_test(page: str) -> None:
    claims = PAGES[page]
    told = [row for row in sentences((ROOT / page).read_text()) if not FIGURE.match(row)]
    assert len(told) > 30
    assert [row for row in told if sum(row.startswith(start) for start in claims) != 1] == []
    assert [start for start in claims if not any(row.startswith(start) for row in told)] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_named_test_exists(page: str) -> None:
    lacking = []
    for test in {test for tests in PAGES[page].values() for test in tests if test}:
        name, _, function = test.partition("::")
        path = ROOT / "tests" / name
        if not path.exists() or (function and f"def {function}(" not in path.read_text()):
            lacking.append(test)
    assert lacking == []


def test_every_figure_of_the_readme_has_its_program() -> None:
    found = figures((ROOT / "README.md").read_text())
    assert len(found) >= 8
    programs = (ROOT / "benchmarks" / "__main__.py").read_text()
    targets = (ROOT / "Makefile").read_text()
    for program in found:
        made, _, target = program.partition("make ")
        assert f"\n{target}:" in targets if target and not made else f'"{program}": lambda' in programs, program


def test_a_sentence_without_a_test_is_seen() -> None:
    text = "# Head\nOne. Two: three\nfour.\n```\nno. code\n```\n- item [a](b)\n| a | b |\n|---|---|\n![p](q)\n"
    assert sentences(text.replace("# Head\n", "# Head\n\n")) == ["One.", "Two: three four.", "item [a](b)", "| a | b |"]
    assert figures("| lost | 0 | | `make drills` |\n| x | y |") == ["make drills"]
