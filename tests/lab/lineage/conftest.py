"""A study that is stopped and gone on with."""

import pytest

from support.records import values, without_times


@pytest.fixture
def stopped_and_gone_on_with(antiphase, tmp_path, monkeypatch):
    """A command in the folders ``whole`` and ``cut``; in ``cut``, a function is interrupted after so many calls.

    The file ``kept`` stays as it was, and both come to the same.
    """

    def run(words, module, name, *, after, kept):
        assert antiphase(f"{words} --output whole")[0] == 0
        function, trained = getattr(module, name), []

        def stopping(*arguments, **options):
            if len(trained) == after:
                raise KeyboardInterrupt
            trained.append(1)
            return function(*arguments, **options)

        with monkeypatch.context() as patched:
            patched.setattr(module, name, stopping)
            code, _, err = antiphase(f"{words} --output cut")
        assert code == 130
        assert "--resume" in err
        assert not (tmp_path / "cut" / "record.json").exists()
        (tmp_path / "cut" / ".half.tmp").mkdir()  # what a kill while saving leaves
        before = (tmp_path / "cut" / kept).stat().st_mtime_ns
        assert antiphase(f"{words} --output cut --resume")[0] == 0
        assert (tmp_path / "cut" / kept).stat().st_mtime_ns == before
        assert not list((tmp_path / "cut").glob(".*.tmp"))
        assert without_times(values(tmp_path / "cut")) == without_times(values(tmp_path / "whole"))

    return run
