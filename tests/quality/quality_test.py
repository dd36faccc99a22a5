"""tools/quality: its statistics, and a small study of the demo model, cut short and resumed."""

import json
import math
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import unittest
from array import array

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BIN = pathlib.Path(sys.argv.pop(1)).resolve()
sys.path.insert(0, str(ROOT / "tools/quality"))
sys.dont_write_bytecode = True

import captured  # noqa: E402
import counts  # noqa: E402
import documents  # noqa: E402
import intervals  # noqa: E402
import report  # noqa: E402


def write_capture(path, rows, complete="true"):
    header = {"__metadata__": {"format": "weft-capture-1", "complete": complete}}
    data = b""
    for name, row in rows.items():
        raw = array("f", row).tobytes()
        header[name] = {"dtype": "F32", "shape": [len(row)],
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + data)


def run(*arguments):
    return subprocess.run([str(ROOT / "tools/quality/quality.py"), "--bin", str(BIN), *arguments],
                          text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


class Statistics(unittest.TestCase):
    def test_wilson_as_published(self):
        # Newcombe 1998, table I: 81 of 263 and 0 of 20.
        low, high = intervals.wilson(81, 263)
        self.assertAlmostEqual(low, 0.2553, places=4)
        self.assertAlmostEqual(high, 0.3662, places=4)
        low, high = intervals.wilson(0, 20)
        self.assertEqual(low, 0)
        self.assertAlmostEqual(high, 0.1611, places=4)

    def test_bootstrap_draws_documents(self):
        alike = intervals.bootstrap([(2.0, 4)] * 5)
        self.assertEqual(alike, (0.5, 0.5))
        low, high = intervals.bootstrap([(0.0, 10), (10.0, 10), (0.0, 10), (10.0, 10)])
        self.assertLess(low, 0.2)
        self.assertGreater(high, 0.8)
        self.assertEqual((low, high), intervals.bootstrap([(0.0, 10), (10.0, 10)] * 2))

    def test_divergence_of_two_distributions(self):
        p, q = [0.5, 0.25, 0.25], [0.25, 0.25, 0.5]
        want = [math.log(x) + 3 for x in p]
        got = [math.log(x) - 7 for x in q]
        self.assertAlmostEqual(captured.divergence(want, got), 0.25 * math.log(2))
        self.assertAlmostEqual(captured.divergence(want, want), 0)

    def test_divergences_by_answer(self):
        with tempfile.TemporaryDirectory() as folder:
            one, two = folder + "/one", folder + "/two"
            rows = {f"logits.1.{t}": [0.0, float(t)] for t in range(4, 8)}
            write_capture(one, rows)
            write_capture(two, rows | {"logits.1.6": [0.0, 0.0]})
            sums = captured.answer_divergences(one, two, [{"answers": [(5, 7), (7, 9)]}])
            self.assertEqual(len(sums[0]), 2)
            self.assertEqual(sums[0][0], 0)
            self.assertGreater(sums[0][1], 0.5)
            write_capture(two, rows, complete="false")
            with self.assertRaisesRegex(ValueError, "not a complete capture"):
                captured.Logits(two)


class Tokens(unittest.TestCase):
    def test_conversations_are_those_of_the_reference(self):
        conversations, _ = documents.load(ROOT / "deploy/examples/09-4013tok.jsonl",
                                          BIN / "weft-tokenize", ROOT / "deploy/models/demo")
        raw = (ROOT / "tests/fixtures/data/logprobs/example-09.safetensors").read_bytes()
        (length,) = struct.unpack("<Q", raw[:8])
        begin, end = json.loads(raw[8:8 + length])["token_ids"]["data_offsets"]
        want = array("i")
        want.frombytes(raw[8 + length + begin:8 + length + end])
        self.assertEqual(conversations[0]["ids"], list(want))
        self.assertEqual(conversations[0]["answers"][0], (4023, 4032))

    def test_weft_tokenize_refuses_what_is_no_text(self):
        tokenize = lambda text, *options: subprocess.run(
            [BIN / "weft-tokenize", *options], input=text, text=True, capture_output=True)
        model = ["--model", str(ROOT / "deploy/models/demo")]
        self.assertEqual(tokenize('""\n', *model).stdout, "[]\n")
        refused = tokenize('"a"\n{}\n', *model)
        self.assertEqual(refused.returncode, 1)
        self.assertIn("weft-tokenize: line 2: ", refused.stderr)
        refused = tokenize("", "--model", "/nowhere")
        self.assertEqual(refused.returncode, 1)
        self.assertIn("/nowhere/tokenizer.json", refused.stderr)
        self.assertEqual(tokenize("").returncode, 2)
        self.assertIn("--model", tokenize("", "--help").stdout)


class Counts(unittest.TestCase):
    def test_questions_for_counts_are_answered_by_their_documents(self):
        made = list(counts.documents(7, 3))
        self.assertEqual(made, list(counts.documents(7, 3)))
        for document in made:
            (_, text), *turns = document["pieces"]
            listed = text.removeprefix(counts.BOS).split()
            self.assertGreaterEqual(len(listed), 1100)
            self.assertEqual(len(turns), 2 * 20)
            for (kind, question), (answer_kind, answer) in zip(turns[::2], turns[1::2]):
                self.assertEqual((kind, answer_kind), ("", "answer"))
                what, which = question.split()
                if what == "many":
                    ratio = listed.count(which) / int(answer)
                    self.assertTrue(0.7 < ratio < 1.42 or answer in ("5", "320"))
                else:
                    self.assertEqual(listed.count(answer.strip()),
                                     max(map(listed.count, counts.PLACES[which])))

    def test_their_texts_are_the_tokens_of_training(self):
        draw = random.Random(3)
        listed, questions = counts.make(draw)
        ids = counts.Ids(json.loads((ROOT / "deploy/models/demo/tokenizer.json").read_text()))
        row, places, answers = ids.row(listed, questions)
        self.assertEqual([row[place + 1] for place in places], answers)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "documents.jsonl")
            path.write_text(json.dumps({"pieces": counts.pieces(listed, questions)}) + "\n")
            loaded, _ = documents.load(path, BIN / "weft-tokenize", ROOT / "deploy/models/demo")
        self.assertEqual(loaded[0]["ids"], row)
        self.assertEqual([begin for begin, _ in loaded[0]["answers"]], [p + 1 for p in places])


class Study(unittest.TestCase):
    def test_a_study_is_resumed_and_reported(self):
        example = str(ROOT / "deploy/examples/00-392tok.jsonl")
        with tempfile.TemporaryDirectory() as folder:
            common = ["--documents", example, "--out", folder, "--ranks", "2", "--top-k", "32",
                      "--exact-top-k", ""]
            first = run(*common, "--modes", "interleaved", "--coverage", "0.5")
            self.assertEqual(first.returncode, 0, first.stderr)
            self.assertIn("cell 3 of 3: interleaved K=32 G=2 coverage=0.5", first.stderr)
            results = pathlib.Path(folder, "results.jsonl")
            lines = results.read_text().splitlines()
            self.assertEqual(len(lines), 3)
            # What is there is left as it was.
            again = run(*common, "--modes", "certified", "--coverage", "0.5")
            self.assertEqual(again.returncode, 0, again.stderr)
            self.assertIn("cell 1 of 1: certified", again.stderr)
            cells = [json.loads(line) for line in results.read_text().splitlines()]
            self.assertEqual([json.dumps(cell) for cell in cells[:3]], lines)
            self.assertEqual([cell["mode"] for cell in cells],
                             ["dense", "exact", "interleaved", "certified"])
            exact, interleaved, certified = (cell["documents"][0] for cell in cells[1:])
            self.assertEqual(len(exact), 6)  # every query saw more than 32 tokens
            total = lambda answers: sum(a["kl"] for a in answers) / sum(a["tokens"] for a in answers)
            self.assertGreater(total(interleaved), 1e-6)
            self.assertLess(cells[2]["selection"]["pairs_covered"], cells[2]["selection"]["pairs"])
            selection = cells[3]["selection"]
            self.assertEqual(selection["pairs_covered"] + selection["second_rounds"],
                             selection["pairs"])
            self.assertEqual(len(certified), 6)
            table = run("--out", folder, "--report").stdout
            self.assertIn("6 questions on 1 documents", table)
            self.assertEqual(table.count("\n| "), 6)

    def test_answers_to_which_nothing_was_cut_do_not_count(self):
        example = str(ROOT / "deploy/examples/00-392tok.jsonl")
        with tempfile.TemporaryDirectory() as folder:
            done = run("--documents", example, "--out", folder, "--ranks", "", "--top-k", "1024",
                       "--exact-top-k", "")
            self.assertEqual(done.returncode, 0, done.stderr)
            cells = [json.loads(line) for line in
                     pathlib.Path(folder, "results.jsonl").read_text().splitlines()]
            self.assertEqual([len(cell["documents"][0]) for cell in cells], [6, 0])
            self.assertIn("nothing was cut", done.stdout)

    def test_answers_of_which_the_lists_hold_everything_do_not_count(self):
        example = str(ROOT / "deploy/examples/00-392tok.jsonl")  # answers begin at 401 to 515
        with tempfile.TemporaryDirectory() as folder:
            done = run("--documents", example, "--out", folder, "--ranks", "4", "--top-k", "380",
                       "--exact-top-k", "", "--coverage", "0.99")
            self.assertEqual(done.returncode, 0, done.stderr)
            cells = [json.loads(line) for line in
                     pathlib.Path(folder, "results.jsonl").read_text().splitlines()]
            m = cells[2]["m"]
            exact, interleaved = ([answer["at"] for answer in cell["documents"][0]]
                                  for cell in cells[1:])
            self.assertEqual(len(exact), 6)
            self.assertEqual(interleaved, [at for at in exact if math.ceil(at / 4) > m])
            self.assertTrue(0 < len(interleaved) < 6)
            # Queries before the answers count likewise.
            self.assertLess(cells[2]["selection"]["pairs"], cells[1]["selection"]["pairs"])

    def test_lost_and_won_are_of_the_same_answers(self):
        answer = lambda at, right: {"at": at, "right": right}
        exact = {"documents": [[answer(5, True), answer(9, False), answer(12, True)]]}
        cell = {"documents": [[answer(9, True), answer(12, False)]]}
        self.assertEqual(report.changed(cell, exact), "-1 +1")
        for document in exact["documents"] + cell["documents"]:
            for entry in document:
                del entry["at"]
        self.assertEqual(report.changed(cell, exact), "-0 +0")  # the first two
        exact["documents"][0][0]["right"] = False
        self.assertEqual(report.changed(cell, exact), "-0 +1")

    def test_bad_values_are_refused(self):
        self.assertEqual(run().returncode, 2)
        refused = run("--out", "/tmp/x", "--modes", "fast")
        self.assertEqual(refused.returncode, 2)
        self.assertIn("--modes must be of interleaved, certified, got 'fast'", refused.stderr)
        refused = run("--out", "/tmp/x", "--ranks", "x")
        self.assertEqual(refused.returncode, 2)
        for option in ("--out", "--documents", "--first", "--top-k", "--ranks", "--report",
                       "--script"):
            self.assertIn(option, run("--help").stdout)


if __name__ == "__main__":
    unittest.main()
