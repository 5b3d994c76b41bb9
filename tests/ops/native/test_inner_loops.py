"""What compilers make of the inner loops: products, loads and broadcasts from memory, and nothing that the source did
not mean. A broadcast that became an addition once cost half of the speed on processors that add on the ports that
multiply, and no result or timing elsewhere showed it.
"""

import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from antiphase.ops.native import build

SOURCE = Path(__file__).parent / "loops.cpp"
PRODUCTS = ("scores", "weights_values", "gradient_of_keys")
LABEL, JUMP = re.compile(r"(\.L\w+):"), re.compile(r"j\w+\s+(\.L\w+)")
MULTIPLIED = re.compile(r"vfn?madd\d+ps|vdpbf16ps")
ON_STACK = re.compile(r"v.*(\(%rsp|-\d+\(%rbp\))")


def functions(assembly):
    """Lines of code and labels of each function."""
    found, own = {}, None
    for line in assembly.splitlines():
        if name := re.match(r"([a-z]\w*):", line):
            own = found.setdefault(name[1], [])
        elif own is not None and (LABEL.match(line) or re.match(r"\s+[a-z]", line)):
            own.append(line.strip())
    return found


def inner_loop(lines):
    """The loop without a loop in it that multiplies most, without its labels."""
    labels = {found[1]: at for at, line in enumerate(lines) if (found := LABEL.match(line))}
    spans = [
        (labels[found[1]], at)
        for at, line in enumerate(lines)
        if (found := JUMP.match(line)) and labels.get(found[1], at) < at
    ]
    inner = [(a, b) for a, b in spans if not any(a <= c and d <= b and (a, b) != (c, d) for c, d in spans)]
    loops = [[line for line in lines[a : b + 1] if not LABEL.match(line)] for a, b in inner]
    return max(loops, key=lambda loop: sum(bool(MULTIPLIED.match(line)) for line in loop))


@pytest.fixture(scope="module", params=("g++", "clang++"))
def compiler(request):
    if shutil.which(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    return request.param


@pytest.fixture(scope="module", params=("avx2", "avx512", "avx512bf16"))
def loops(request, compiler, tmp_path_factory):
    """The inner loop of each function, for one kind of processor."""
    if request.param not in build.kernels_of_machine():
        pytest.skip("these are kernels for x86-64")
    target = tmp_path_factory.mktemp("loops") / "loops.s"
    flags = [*build.FLAGS, *build.kernels_of_machine()[request.param], f"-I{build.SOURCE}"]
    subprocess.run([compiler, *flags, "-S", str(SOURCE), "-o", str(target)], check=True)
    return {name: inner_loop(lines) for name, lines in functions(target.read_text()).items()}


@pytest.mark.slow
def test_all_64_bytes_of_the_shapes_of_tiles_are_written_before_they_are_read(tmp_path):
    """No emulation reads them; GCC's intrinsic declares only the first 8, and the others were left out."""
    if "amx" not in build.kernels_of_machine() or shutil.which("g++") is None:
        pytest.skip("these are kernels for x86-64, read from what GCC makes of them")
    source, found = tmp_path / "meter.cpp", tmp_path / "meter.s"
    source.write_text(
        '#include "meter.h"\n'
        'extern "C" int run(const antiphase_meter_problem *call) { return Meter<BFloat16>(*call).run(); }\n'
    )
    command = ["g++", *build.FLAGS, *build.kernels_of_machine()["amx"], "-DANTIPHASE_KIND=amx", f"-I{build.SOURCE}"]
    subprocess.run([*command, "-S", str(source), "-o", str(found)], check=True)
    (place,) = {int(start) for start in re.findall(r"ldtilecfg\s+(\d+)\(%rsp\)", found.read_text())}
    written = {int(to) for to in re.findall(r"mov\w*\s+\S+, (\d+)\(%rsp\)", found.read_text())}
    assert {place, place + 16, place + 48} <= written  # the palette, bytes of the columns, rows


@pytest.mark.slow
@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_is_multiplied_and_broadcast_from_memory(loops, name):
    loop = loops[name]
    count = Counter(line.split()[0] for line in loop)
    multiplied = sum(number for word, number in count.items() if MULTIPLIED.match(word))
    broadcasts = [line for line in loop if "broadcast" in line or "{1to" in line]
    assert multiplied >= 24
    assert 2 * len(broadcasts) == multiplied  # two vectors a row
    assert all("(" in line for line in broadcasts), "a broadcast from a register takes a port that multiplies"
    others = [word for word in count if word.startswith("v") and not MULTIPLIED.match(word)]
    assert all(word.startswith(("vmov", "vbroadcast", "vpbroadcast")) for word in others), others
    assert not any(ON_STACK.match(line) for line in loop), "sums leave the registers"


@pytest.mark.slow
def test_an_exponential_is_a_polynomial_and_its_ends(loops):
    count = Counter(line.split()[0] for line in loops["exponentials"] if line.startswith("v"))
    assert 6 <= sum(number for word, number in count.items() if MULTIPLIED.match(word)) <= 7
    assert not any(word.startswith(("vcmp", "vblend", "vgather", "vpgather")) for word in count)
    assert sum(count.values()) <= 16
