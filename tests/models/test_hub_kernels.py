"""Commands take the package ``kernels``, with which transformers fetches code from the Hub, for absent."""

import json
import os
import subprocess
import sys

import pytest
from transformers.utils.import_utils import KERNELS_MIN_VERSION

from support.paths import ROOT


@pytest.mark.slow
def test_a_model_that_asks_for_a_kernel_of_the_hub_gets_none(tmp_path, tiny_model, text_tokenizer):
    tiny_model("softmax", vocab_size=len(text_tokenizer)).save_pretrained(tmp_path / "model")
    text_tokenizer.save_pretrained(tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "quantization_config": {"quant_method": "mxfp4"}}))
    fake = tmp_path / "packages"
    (fake / "kernels").mkdir(parents=True)
    (fake / "kernels" / "__init__.py").write_text("open('imported', 'w').close()\nraise ImportError('never')\n")
    (fake / f"kernels-{KERNELS_MIN_VERSION}.dist-info").mkdir()
    (fake / f"kernels-{KERNELS_MIN_VERSION}.dist-info" / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: kernels\nVersion: {KERNELS_MIN_VERSION}\n"
    )
    variables = os.environ | {"PYTHONPATH": f"{fake}{os.pathsep}{ROOT}"}
    words = ["look", str(tmp_path / "model"), "--text", "one and two", "--output", str(tmp_path / "page")]
    code = f"import sys; sys.argv = {['antiphase', *words]!r}; from antiphase.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=variables, capture_output=True, text=True, check=False
    )
    assert not (tmp_path / "imported").exists(), done.stderr
    assert "Traceback" not in done.stderr
