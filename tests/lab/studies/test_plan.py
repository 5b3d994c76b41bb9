"""What is said before training begins."""


def test_a_schedule_without_decay_is_told(antiphase, tiny_preset):
    words = f"train --preset {tiny_preset.name} --set training.steps=2 --set training.warmup_steps"
    code, out, _ = antiphase(f"{words}=8 --output a")
    assert code == 0
    assert "the learning rate only rises, to 25 % of its peak, because training.warmup_steps (8)" in " ".join(
        out.split()
    )
    assert "only rises" not in antiphase(f"{words}=1 --output b")[1]
