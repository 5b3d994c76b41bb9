"""What the commands of the line cannot use costs one sentence and leaves nothing (bounds of flags are elsewhere)."""

import pytest

FILES = {
    "train.txt": "pos a b\nneg c d\n" * 9, "other.txt": "pos a\nneg b\nmaybe c\n", "empty.txt": "pos a\n\nneg b\n",
    "parts.json": '{"train": [{"text": "a"}], "test": [{"text": "b"}]}',
    "four.txt": "pos a\npos b\nneg c\nneg d\n", "never.txt": "pos a\npos b\nnever e\n", "train.tsv": "a\tb\nc\td\n" * 9,
    "tab.tsv": "a b\tc\na b\n", "long.tsv": "a\tb\n" + "a " * 9 + "\tb\n" + "a\tb b b b b b b b b\nc\td\n",
}  # fmt: skip
TRAIN, PAIRS = "classify --train train.txt --output r", "translate --train train.tsv --output r --models transformer"
LONG = "translate --train long.tsv --output r --models transformer --set max_position_embeddings"


@pytest.mark.parametrize(("words", "pattern"), [
    (f"{TRAIN} --test other.txt", r"other\.txt, line 3: the label 'maybe' does not occur in training"),
    (f"{TRAIN} --test other.txt --folds 3", "exclude each other"),
    (f"{TRAIN} --model bilstmm", "did you mean 'bilstm'"), (f"{TRAIN} --tokenizer bpe --min-count 2", "--min-count"),
    (f"{TRAIN} --set lstm.dropout=0", "not one of the chosen models"),
    (f"{TRAIN} --set vocab_size=9", "vocab_size: .* the data says it"),
    (f"{TRAIN} --set epochs=0", "--set epochs must be a whole number"),
    (f"{TRAIN} --word-vectors no.txt", r"--word-vectors no\.txt: there is no such file"),
    ("classify --train empty.txt --output r", r"empty\.txt, line 2: the line is empty"),
    ("classify --train never.txt --folds 2 --output r", r"line 3: the label 'never' has only this row"),
    ("classify --train four.txt --folds 9 --output r", "--folds 9 is more than the 4 rows"),
    (f"{TRAIN} --tokenizer ./t --vocabulary 9", "--vocabulary is for a tokenizer that is trained"),
    (f"{PAIRS} --tokenizer ./t --vocabulary 9", "--vocabulary is for a tokenizer that is trained"),
    ("translate --output r --vocabulary 9", "--vocabulary needs --train"),
    ("tokenize a --tokenizer ./t --vocabulary 9", "--vocabulary is for a tokenizer that is trained"),
    ("tokenize a --tokenizer ./t --data train.txt", "--data is for a tokenizer that is trained"),
    ("tokenize a --text-field b", "--text-field is for --data"),
    ("predict r", "--text or --file is missing"), ("predict r --text a --text-field b", "--text-field is for --file"),
    ("predict ./nowhere --text a", "RUN ./nowhere: there is no such"),
    ("tokenize a --tokenizer words --tokenizer words", "twice"),
    ("tokenize a --tokenizer bpe --vocabulary 30", "--vocabulary must be at least 258"),
    ("tokenize a --tokenizer ./none", "--tokenizer ./none: there is no such folder"),
    ("tokenize a --data none.txt", "--data none.txt: there is no such file"), ("tokenize a\udc80", "is not UTF-8"),
    ("translate --train tab.tsv --output r", r"--train tab\.tsv, line 2: there is no tab in the line"),
    (f"{PAIRS} --test tab.tsv", r"--test tab\.tsv, line 2"),
    (f"{LONG}=8", r"long\.tsv, line 2: the text has 9 tokens, more than the 8 positions .*max_position_embeddings=9"),
    (f"{LONG}=9", r"long\.tsv, line 3: the text has 10 tokens, more than the 9 positions"),
    (f"{PAIRS} --set dropuot=0.1", r"--set dropuot: .*did you mean 'dropout'"),
    (f"{PAIRS} --set eos_token_id=3", "the data says it"), (f"{PAIRS} --samples 5", "--samples is for generated pairs"),
    ("translate --output r --test train.tsv", "--test needs --train"),
    ("translate --output r --tokenizer bpe", "--tokenizer needs --train"),
    ("translate --output r --source-field en", "--source-field needs --train: generated pairs have no columns"),
    ("translate --output r --target-field de", "--target-field needs --train: generated pairs have no columns"),
    ("study dependency --models lstn --output r", r"--models lstn: there is no such model.*lstm"),
    ("study dependency --lengths 4,8 --held-out 4,8 --output r", "--lengths must contain a length that is not in"),
    ("study dependency --tested 8,12 --output r", "--tested must name different lengths of the training, got 12"),
    ("study dependency --samples 359 --output r", "--samples must be at least 360 for 18 lengths, got 359"),
    ("study dependency --test-samples 41 --output r", "--test-samples must be even"),
    ("study dependency --models rnn --set norm=x --output r", "--set norm: antiphase_recurrent has no setting"),
    ("study throughput --lengths 64 --tokens 32 --output r", "--tokens must be at least 64, the longest sequence; got"),
    ("study gradients --models cnn --output r", "--models cnn: a convolutional classifier has one layer"),
    (f"{TRAIN} --model transformer --set norm_position=side", "norm_position must be one of pre"),
    ("study gradients --set norm_position=post --output r", "--set norm_position: in this study it is each in turn"),
    ("study gradients --set rnn.num_hidden_layers=3 --models rnn --output r", "the number that --layers gives"),
    ("study gradients --set warmup_steps=3 --output r", "no part of the training"),
    ("study dependency --set epochs=40 --output r", "the number that --epochs gives"),
    ("study throughput --set max_position_embeddings=9 --output r", "the longest of --lengths"),
    ("translate --train parts.json --output r", r"--train or --test as FILE@PART"),
    ("predict r --file parts.json", "--file as FILE@PART"),
    *((f"study {name} --output mine", "not empty") for name in ("dependency", "throughput", "gradients")),
])  # fmt: skip
def test_unusable_input_costs_one_sentence_and_leaves_nothing(refused, tmp_path, words, pattern):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").touch()
    refused(pattern, words)
