"""Workers in network namespaces, as on separate hosts; a cut between them is found in time."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.workers.conftest import CORPUS, SAMPLE, ZOO

pytest.importorskip("torch")
HERE = Path(__file__).parent
# Two hosts: this namespace and another, with a cable between them.
HOSTS = """
set -e
ip link set lo up
ip link add name weft0 type veth peer name weft1
unshare -n sleep 1000 & other=$!
while [ "$(readlink /proc/$other/ns/net)" = "$(readlink /proc/$$/ns/net)" ]; do sleep 0.1; done
ip link set weft1 netns $other
ip addr add 10.77.0.1/24 dev weft0
ip link set weft0 up
there="nsenter -t $other -n"
$there ip link set lo up
$there ip addr add 10.77.0.2/24 dev weft1
$there ip link set weft1 up
launch="$PYTHON -m weft launch --hosts 2 --master 10.77.0.1:29500"
GLOO_SOCKET_IFNAME=weft0 $launch --host 0 --workers $WORKERS "$@" & first=$!
GLOO_SOCKET_IFNAME=weft1 $there $launch --host 1 --workers $WORKERS "$@" & second=$!
if [ -n "$CUT" ]; then
  while [ ! -e "$CUT" ]; do sleep 0.1; done
  ip link set weft0 down
fi
set +e
wait $first; one=$?
wait $second; two=$?
kill $other
echo "statuses $one $two"
"""


def can_unshare() -> bool:
    if any(shutil.which(tool) is None for tool in ("unshare", "nsenter", "ip")):
        return False
    made = "ip link add name a0 type veth peer name a1"
    tried = subprocess.run(["unshare", "-rn", "sh", "-c", made], capture_output=True, check=False)
    return tried.returncode == 0


def hosts(*command: str, cut: str = "", workers: int = 1, timeout: float = 240) -> str:
    more = {"PYTHONPATH": str(HERE.parent.parent), "WEFT_TIMEOUT": "60", "CUT": cut}
    more["WORKERS"] = str(workers)
    ran = subprocess.run(
        ["unshare", "-rn", "bash", "-c", HOSTS, "hosts", *command],
        env={**os.environ, **more, "PYTHON": sys.executable},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )
    return ran.stdout


@pytest.mark.long
@pytest.mark.skipif(not can_unshare(), reason="network namespaces are not allowed here")
def test_two_hosts():
    text = hosts(str(HERE / "launched.py"), "nothing")
    assert "statuses 0 0" in text and text.count("devices 2 sum 72188.0") == 2, text


@pytest.mark.long
@pytest.mark.skipif(not can_unshare(), reason="network namespaces are not allowed here")
@pytest.mark.parametrize(("workers", "programs"), [(1, ()), (2, SAMPLE), (4, SAMPLE)])
def test_the_corpus_on_two_hosts(workers: int, programs: tuple[str, ...], lockstep: Path):
    text = hosts(str(CORPUS), str(lockstep), *programs, workers=workers)
    assert "statuses 0 0" in text, text
    assert text.count("programs are equal") == 2 * workers, text


@pytest.mark.long
@pytest.mark.skipif(not can_unshare(), reason="network namespaces are not allowed here")
def test_a_sample_of_the_zoo_on_two_hosts():
    pytest.importorskip("transformers")
    line = ("-m", "weft", "zoo", *ZOO, "--mesh", "4", "--dtype", "f32")
    text = hosts(*line, workers=2, timeout=600)
    assert "statuses 0 0" in text, text


@pytest.mark.long
@pytest.mark.skipif(not can_unshare(), reason="network namespaces are not allowed here")
def test_a_network_that_is_cut(tmp_path: Path):
    """No packet arrives, and none says so: both hosts end by themselves, and name the other."""
    text = hosts(str(HERE / "launched_cut.py"), str(tmp_path / "cut"), cut=str(tmp_path / "cut"))
    assert "statuses 1 1" in text, text
    assert "[0] " in text and "never came, in 8 s: worker 1; this one is in step" in text, text
    assert "never came, in 8 s: worker 0; this one is in step" in text, text
    assert "the key-value store of worker 0 is gone" in text, text
