// The example documents through the whole server: one teacher-forced pass per document over all its
// turns, compared with what the reference implementation marked, and a few turns decoded freely.
#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/e2e/server_process.h"

using namespace weft;
using namespace weft::e2e;

namespace {

struct Example {
  std::string name, document;
  nlohmann::json turns;
};

std::vector<Example> Examples(int64_t min_tokens, int64_t max_tokens) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry :
       std::filesystem::directory_iterator(WEFT_SOURCE_DIR "/deploy/examples")) {
    if (entry.path().extension() == ".jsonl") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  std::vector<Example> examples;
  for (const auto& file : files) {
    std::ifstream in(file);
    const nlohmann::json json = nlohmann::json::parse(in);
    const auto tokens = json.at("document_tokens").get<int64_t>();
    if (tokens < min_tokens || tokens > max_tokens) continue;
    examples.push_back({file.filename(), json.at("document"), json.at("turns")});
  }
  return examples;
}

std::string Question(const Example& example, size_t turn) {
  const auto question = example.turns[turn].at("question").get<std::string>();
  return turn == 0 ? example.document + "\n\n" + question : question;
}

struct Graded {
  int marked = 0, marked_wrong = 0, turns = 0, agree = 0;
  std::vector<std::vector<bool>> exact;  // by example and turn
};

// Whether greedy decoding would give each answer word for word, ending included.
void GradeTeacherForced(v1::Inference::Stub& stub, const Example& example, Graded* graded) {
  std::vector<int32_t> ids = Tokenize(stub, "<｜begin▁of▁sentence｜>");
  std::vector<std::pair<size_t, size_t>> answers;
  for (size_t turn = 0; turn < example.turns.size(); ++turn) {
    const auto add = [&](const std::string& text) {
      const std::vector<int32_t> more = Tokenize(stub, text);
      ids.insert(ids.end(), more.begin(), more.end());
    };
    add("<｜User｜>" + Question(example, turn) + "<｜Assistant｜></think>");
    const size_t begin = ids.size();
    add(example.turns[turn].at("answer").get<std::string>() + "<｜end▁of▁sentence｜>");
    answers.emplace_back(begin, ids.size());
  }
  v1::GenerateRequest request;
  request.mutable_tokens()->mutable_ids()->Add(ids.begin(), ids.end());
  request.set_logprobs_from(static_cast<int32_t>(answers[0].first));
  request.mutable_sampling()->set_max_tokens(0);
  const Reply reply = Generate(stub, request);
  INFO(example.name << ": " << reply.status.error_message());
  REQUIRE(reply.status.ok());
  REQUIRE(reply.argmax.size() == ids.size() - answers[0].first);
  graded->exact.emplace_back();
  for (size_t turn = 0; turn < answers.size(); ++turn) {
    const auto [begin, end] = answers[turn];
    bool exact = true;
    for (size_t i = begin; i < end; ++i) exact &= reply.argmax[i - answers[0].first] == ids[i];
    const bool mark = example.turns[turn].at("reference_exact");
    graded->turns += 1;
    graded->agree += exact == mark ? 1 : 0;
    graded->marked += mark ? 1 : 0;
    graded->marked_wrong += mark && !exact ? 1 : 0;
    graded->exact.back().push_back(exact);
  }
}

void CheckMarks(const Graded& graded) {
  INFO(graded.agree << " of " << graded.turns << " turns agree with the mark; "
                    << graded.marked_wrong << " of " << graded.marked << " marked turns wrong");
  CHECK(graded.marked_wrong <= 2);
  CHECK(graded.agree * 100 >= graded.turns * 95);
}

// A turn asked as a user would, with the right answers before it as history.
void CheckDecoded(v1::Inference::Stub& stub, const Example& example, size_t turn, bool exact) {
  v1::ChatRequest request;
  for (size_t i = 0; i <= turn; ++i) {
    v1::Message* user = request.add_messages();
    user->set_role("user");
    user->set_content(Question(example, i));
    if (i == turn) break;
    v1::Message* assistant = request.add_messages();
    assistant->set_role("assistant");
    assistant->set_content(example.turns[i].at("answer").get<std::string>());
  }
  request.mutable_sampling()->set_temperature(0);
  request.mutable_sampling()->set_max_tokens(64);
  const Reply reply = Chat(stub, request);
  INFO(example.name << " turn " << turn << ": " << reply.text << reply.status.error_message());
  REQUIRE(reply.status.ok());
  // Decoding freely and scoring the right answer are the same computation.
  CHECK((reply.text == example.turns[turn].at("answer").get<std::string>()) == exact);
}

void Run(const std::vector<std::string>& args, int64_t min_tokens, int64_t max_tokens) {
  ServerProcess server(args);
  Graded graded;
  const std::vector<Example> examples = Examples(min_tokens, max_tokens);
  REQUIRE(examples.size() >= 2);
  for (const Example& example : examples) GradeTeacherForced(server.stub(), example, &graded);
  CheckMarks(graded);
  CheckDecoded(server.stub(), examples[0], 0, graded.exact[0][0]);
  CheckDecoded(server.stub(), examples[1], 2, graded.exact[1][2]);
  CheckDecoded(server.stub(), examples[examples.size() / 2], 5,
               graded.exact[examples.size() / 2][5]);
}

}  // namespace

TEST_CASE("documents up to 4K in exact mode on two ranks") {
  Run({"--ranks", "2", "--selection", "exact"}, 0, 4500);
}

TEST_CASE("documents of 1K and 2K interleaved on four ranks") {
  Run({"--ranks", "4", "--selection", "interleaved"}, 900, 2500);
}

TEST_CASE("documents of 8K and 16K interleaved on four ranks", "[slow]") {
  Run({"--ranks", "4", "--selection", "interleaved"}, 4500, 20000);
}
