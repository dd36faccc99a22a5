#include "tools/chat/options.h"

#include <CLI/CLI.hpp>
#include <iostream>
#include <optional>

namespace weft::chat {
namespace {

struct Wishes {
  std::optional<float> temperature;
  std::optional<float> top_p;
  std::optional<uint64_t> seed;
  std::optional<uint32_t> max_tokens;
  std::string selection;
  std::optional<int32_t> index_topk;
  std::optional<double> coverage;
};

void AddOptions(CLI::App* app, Options* options, Wishes* wishes) {
  app->set_version_flag("--version", std::string("weft-chat ") + WEFT_VERSION);
  app->add_option("-q,--question", options->question, "Ask this, print the answer, and exit");
  app->add_option("--file", options->file, "A document, put before the (first) question")
      ->check(CLI::ExistingFile);
  app->add_option("--server", options->server, "The server, HOST:PORT")
      ->envname("WEFT_SERVER")
      ->capture_default_str();
  app->add_option(
         "--resume-timeout", options->resume_seconds,
         "Seconds in which an answer whose server is lost may go on at the next; 0: it ends")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  app->add_option("--system", options->system, "The system text");
  app->add_flag("--thinking", options->thinking,
                "Let the model reason first, where it can; the reasoning goes to stderr");
  app->add_flag("--stats", options->stats, "Figures after each answer, on stderr");
  app->add_flag("--json", options->json,
                "One JSON object with answer and figures; needs a question");
  // Ranges are the server's to check: its message names the rule.
  app->add_option("--temperature", wishes->temperature, "0: always the likeliest token");
  app->add_option("--top-p", wishes->top_p, "Sample among the likeliest tokens of this share");
  app->add_option("--seed", wishes->seed, "Makes sampling repeatable");
  app->add_option("--max-tokens", wishes->max_tokens, "Longest answer");
  app->add_option("--selection", wishes->selection, "exact, interleaved, certified or dense");
  app->add_option("--index-topk", wishes->index_topk, "K, the tokens a query selects");
  app->add_option("--coverage", wishes->coverage, "gamma, the wanted probability of full coverage");
}

v1::ChatRequest Request(const Wishes& wishes) {
  v1::ChatRequest request;
  v1::Sampling* sampling = request.mutable_sampling();
  if (wishes.temperature) sampling->set_temperature(*wishes.temperature);
  if (wishes.top_p) sampling->set_top_p(*wishes.top_p);
  if (wishes.seed) sampling->set_seed(*wishes.seed);
  if (wishes.max_tokens) sampling->set_max_tokens(*wishes.max_tokens);
  v1::Selection* selection = request.mutable_selection();
  selection->set_mode(wishes.selection);
  if (wishes.index_topk) selection->set_index_topk(*wishes.index_topk);
  if (wishes.coverage) selection->set_coverage(*wishes.coverage);
  return request;
}

}  // namespace

int ParseOptions(int argc, char** argv, Options* options) {
  CLI::App app(
      "weft-chat: talks to a weft-server. Without -q and with a terminal, a session; what "
      "is piped in is the question, or with -q the document.");
  Wishes wishes;
  AddOptions(&app, options, &wishes);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e, std::cout, std::cerr) == 0 ? 0 : 2;
  }
  options->has_question = app.count("--question") > 0;
  options->request = Request(wishes);
  options->request.set_thinking(options->thinking);
  return -1;
}

}  // namespace weft::chat
