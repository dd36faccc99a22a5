#include "tools/lab/options.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>

#include "tools/cli/values.h"

namespace weft::lab {
namespace {

// As written; Read() reads them, so that every error names rule and value.
struct Texts {
  std::string fields = "all", placements = "contiguous,round-robin,rotated,block-cyclic:64",
              ranks = "4,8", modes = "all", m, coverage = "0.99";
  std::string captured;
  std::string top_k = "256", context = "4096", queries = "200", block = "64", position = "end",
              seed = "1";
};

void AddOptions(CLI::App* app, Texts* texts, Options* options) {
  const auto add = [&](const char* name, std::string* text, const char* help) {
    app->add_option(name, *text, help)->capture_default_str();
  };
  add("--field", &texts->fields,
      "Score fields, with commas, or all: independent, clustered, periodic, drifting, ties, "
      "needle, adversarial (to rotated placement)");
  app->add_option("--captured", texts->captured,
                  "Instead of fields: scores that weft-engine --capture wrote, files with commas; "
                  "none twice, all scores finite");
  app->add_flag("--by-layer", options->spec.by_layer, "Captured scores layer by layer");
  add("--placement", &texts->placements,
      "With commas: contiguous, round-robin, rotated, block-cyclic:b, rotated:b");
  add("--ranks", &texts->ranks, "G, or several with commas: 1 to 4096");
  add("--mode", &texts->modes,
      "With commas, or all: exact, interleaved, certified, block-sparse, full");
  app->add_option("--m", texts->m,
                  "List lengths, with commas, from 1; default: the planner's for --coverage");
  add("--coverage", &texts->coverage, "gamma for the planner's m: in (0, 1]");
  add("--top-k", &texts->top_k, "K, the tokens a query selects");
  add("--context", &texts->context, "N, the tokens of the context");
  add("--queries", &texts->queries,
      "Queries per field and G, each with fresh scores; of captured scores "
      "so many pairs (default: all)");
  add("--block", &texts->block, "Block size of the block-sparse baseline");
  add("--position", &texts->position,
      "Where queries stand: end of the context, or any position (those that see no more than K "
      "tokens are left out)");
  add("--seed", &texts->seed, "The same seed gives the same output");
  app->add_option("--csv", options->csv, "Write CSV to this file; - for standard output");
  app->add_option("--svg", options->svg,
                  "Write curves-G.svg, load-G.svg and cost-G.svg for each G to this folder, with a "
                  "sweep of m");
}

// Names with commas, or all of them.
template <typename T, typename Parse>
std::vector<T> Names(const char* option, const std::string& text, int count, Parse parse) {
  std::vector<T> values;
  for (int i = 0; text == "all" && i < count; ++i) values.push_back(static_cast<T>(i));
  if (text == "all") return values;
  for (const std::string& name : cli::Split(text)) {
    T value;
    if (!parse(name, &value)) {
      std::string rule;
      for (int i = 0; i < count; ++i) rule += std::string(Name(static_cast<T>(i))) + ", ";
      throw cli::UsageError(std::string(option) + " must be of " + rule + "or all, got '" + name +
                            "'");
    }
    values.push_back(value);
  }
  return values;
}

// What the captured scores themselves tell.
void ReadCaptured(const CLI::App& app, const Texts& texts, Spec* spec) {
  for (const char* option : {"--field", "--context", "--position", "--seed"}) {
    if (app.count(option) == 0) continue;
    throw cli::UsageError(std::string(option) + " is of synthetic fields, not of --captured");
  }
  auto captured = std::make_shared<Captured>();
  for (const std::string& path : cli::Split(texts.captured)) {
    if (path.empty()) {
      throw cli::UsageError("--captured must be files with commas, got '" + texts.captured + "'");
    }
    captured->Read(path);
  }
  if (!captured->complete()) {
    std::fprintf(stderr, "weft-lab: --capture-limit left queries out of the captured scores\n");
  }
  if (app.count("--top-k") == 0) spec->K = captured->topk();
  if (app.count("--queries") > 0) captured->Thin(static_cast<size_t>(spec->queries));
  captured->CheckNumbers();
  spec->captured = captured;
}

void Read(const CLI::App& app, const Texts& texts, Spec* spec) {
  using cli::Integer, cli::Integers;
  spec->fields = Names<FieldKind>("--field", texts.fields, kFields, ParseField);
  spec->modes = Names<Mode>("--mode", texts.modes, kModes, ParseMode);
  spec->ranks = Integers("--ranks", texts.ranks, 1, 4096);
  spec->K = Integer("--top-k", texts.top_k, 1, 65536);
  spec->N = Integer("--context", texts.context, 1, 1 << 24);
  if (!texts.m.empty()) spec->m = Integers("--m", texts.m, 1, 65536);
  spec->coverage = cli::Real("--coverage", texts.coverage, 0, 1);
  spec->queries = Integer("--queries", texts.queries, 1, 1'000'000);
  spec->block = Integer("--block", texts.block, 1, 1 << 24);
  spec->seed = static_cast<uint64_t>(Integer("--seed", texts.seed, 0, INT64_MAX));
  spec->placements = cli::Split(texts.placements);
  for (const std::string& name : spec->placements) {
    Placement placement;
    if (!ParsePlacement(name, 1, spec->N, &placement)) {
      throw cli::UsageError(
          "--placement must be of contiguous, round-robin, rotated, block-cyclic:b or rotated:b "
          "with b >= 1, got '" +
          name + "'");
    }
  }
  if (texts.position != "end" && texts.position != "any") {
    throw cli::UsageError("--position must be end or any, got '" + texts.position + "'");
  }
  spec->any_position = texts.position == "any";
  if (!texts.captured.empty()) {
    ReadCaptured(app, texts, spec);
  } else if (spec->by_layer) {
    throw cli::UsageError("--by-layer needs --captured");
  }
}

}  // namespace

int ParseOptions(int argc, char** argv, Options* options) {
  CLI::App app(
      "weft-lab: plays selection over synthetic or captured scores, and tells what each placement "
      "and "
      "mode keeps of the exact top-K, and what it costs.",
      "weft-lab");
  app.set_version_flag("--version", std::string("weft-lab ") + WEFT_VERSION);
  Texts texts;
  AddOptions(&app, &texts, options);
  try {
    app.parse(argc, argv);
    Read(app, texts, &options->spec);
  } catch (const CLI::ParseError& e) {
    return app.exit(e, std::cout, std::cerr) == 0 ? 0 : 2;
  } catch (const cli::UsageError& e) {
    std::fprintf(stderr, "weft-lab: %s\n", e.what());
    return 2;
  } catch (const std::runtime_error& e) {  // a file
    std::fprintf(stderr, "weft-lab: %s\n", e.what());
    return 1;
  }
  return -1;
}

}  // namespace weft::lab
