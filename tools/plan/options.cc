#include "tools/plan/options.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>
#include <string>

#include "tools/cli/values.h"

namespace weft::plan {
namespace {

// As written; Questions() reads them, so that every error names rule and value.
struct Texts {
  std::string top_k = "2048", ranks = "8", coverage = "0.99", context;
  std::string certified_coverage = "0.99999", rows = "32", layers = "61", token_ns = "24",
              round_us = "30", row_us = "2";
  std::string row_bytes = "1152", heads = "128", latent = "512", rope = "64", activation = "4";
};

void AddOptions(CLI::App* app, Texts* texts, Options* options) {
  const auto add = [&](const char* name, std::string* text, const char* help) {
    app->add_option(name, *text, help)->capture_default_str();
  };
  add("--top-k", &texts->top_k, "K, the tokens a query selects (index_topk): 1 to 65536");
  add("--ranks", &texts->ranks, "G, or several with commas: 1 to 65536");
  add("--coverage", &texts->coverage,
      "gamma, the wanted probability that the union holds the whole top-K, per query and layer; "
      "or several with commas: in (0, 1]");
  app->add_option("--context", texts->context,
                  "N, the tokens in sight: also the smallest m for exactly this many (1 to 10^12)");
  app->add_flag("--json", options->json,
                "JSON: one object, or {\"plans\": [...]} for several G or coverages");
  add("--certified-coverage", &texts->certified_coverage, "gamma of certified mode");
  add("--rows", &texts->rows, "B, rows of a step");
  add("--layers", &texts->layers, "L, selecting layers");
  add("--token-ns", &texts->token_ns,
      "Cost of one more token in the union of a query and layer, in ns: a row of 1152 B over "
      "50 GB/s, and attention on it; about 1 for exchange `partial`");
  add("--round-us", &texts->round_us, "Cost of a second round in a layer, in microseconds");
  add("--row-us", &texts->row_us, "Cost of each row in a second round, in microseconds");
  add("--row-bytes", &texts->row_bytes,
      "A row of the latent cache: 1152 for bf16, 2304 for fp32, 656 for FP8");
  add("--heads", &texts->heads, "H, attention heads");
  add("--latent", &texts->latent, "c, width of the latent");
  add("--rope", &texts->rope, "d_r, width of the rotated part");
  add("--activation-bytes", &texts->activation, "Bytes of an exchanged activation");
}

std::vector<Question> Questions(const Texts& texts) {
  using cli::Integer, cli::Real;
  constexpr int64_t kMost = 65536;
  Question q;
  q.K = Integer("--top-k", texts.top_k, 1, kMost);
  if (!texts.context.empty()) {
    q.context = Integer("--context", texts.context, 1, 1'000'000'000'000);
  }
  q.certified_gamma = Real("--certified-coverage", texts.certified_coverage, 0, 1);
  q.step.rows = Integer("--rows", texts.rows, 1, 1'000'000);
  q.step.layers = Integer("--layers", texts.layers, 1, 10'000);
  q.step.token_ns = Real("--token-ns", texts.token_ns, 0, 1e9);
  q.step.round_us = Real("--round-us", texts.round_us, 0, 1e9, true);
  q.step.row_us = Real("--row-us", texts.row_us, 0, 1e9, true);
  const auto size = [](const char* option, const std::string& text) {
    return static_cast<double>(Integer(option, text, 1, 1'000'000));
  };
  q.shape.row_bytes = size("--row-bytes", texts.row_bytes);
  q.shape.heads = size("--heads", texts.heads);
  q.shape.latent = size("--latent", texts.latent);
  q.shape.rope = size("--rope", texts.rope);
  q.shape.activation = size("--activation-bytes", texts.activation);
  std::vector<Question> questions;
  const std::vector<double> gammas = cli::Reals("--coverage", texts.coverage, 0, 1);
  for (int64_t G : cli::Integers("--ranks", texts.ranks, 1, kMost)) {
    for (double gamma : gammas) {
      q.G = G;
      q.gamma = gamma;
      questions.push_back(q);
    }
  }
  return questions;
}

}  // namespace

int ParseOptions(int argc, char** argv, Options* options) {
  CLI::App app("weft-plan: how long the lists must be, and what that costs.", "weft-plan");
  app.set_version_flag("--version", std::string("weft-plan ") + WEFT_VERSION);
  app.require_subcommand(1);
  app.set_help_all_flag("--help-all", "Help of every subcommand");
  CLI::App* select = app.add_subcommand(
      "select", "m for a top-K over G ranks: by the formula and exactly; union, recall, bytes");
  Texts texts;
  AddOptions(select, &texts, options);
  try {
    app.parse(argc, argv);
    options->questions = Questions(texts);
  } catch (const CLI::ParseError& e) {
    return app.exit(e, std::cout, std::cerr) == 0 ? 0 : 2;
  } catch (const cli::UsageError& e) {
    std::fprintf(stderr, "weft-plan: %s\n", e.what());
    return 2;
  }
  return -1;
}

}  // namespace weft::plan
