#include "engine/app/capture_options.h"

#include <stdexcept>

#include "engine/app/size_option.h"

namespace weft {

void AddCaptureOptions(CLI::App& app, CaptureTexts* texts, CaptureOptions* options) {
  app.add_option(
      "--capture", options->path,
      "write the indexer's scores of chosen queries to this safetensors file (its format "
      "is told in engine/run/capture.h); complete when the engine has ended in order");
  app.add_option("--capture-layers", texts->layers, "all, or layers as 0,3-5")
      ->capture_default_str();
  app.add_option("--capture-queries", texts->queries,
                 "all, a share of the positions with a decimal point as 0.05, or positions as "
                 "100,4000-4100")
      ->capture_default_str();
  app.add_option("--capture-data", texts->data, "what to write: scores, logits or both")
      ->capture_default_str();
  AddSize(app, "--capture-limit", &options->limit, 1,
          "most bytes of tensors in the file, as 512MB; a tensor that would go beyond is left out, "
          "and the log says so in the end",
          "a capture always has a limit, and without --capture there is none");
}

void ReadCaptureTexts(const CaptureTexts& texts, CaptureOptions* options) {
  if (!IndexSet::Parse(texts.layers, false, &options->layers)) {
    throw CLI::ValidationError("--capture-layers",
                               "must be all, or layers as 0,3-5, got '" + texts.layers + "'");
  }
  if (!IndexSet::Parse(texts.queries, true, &options->queries)) {
    throw CLI::ValidationError("--capture-queries",
                               "must be all, a share in (0, 1] with a decimal point, or positions "
                               "as 100,4000-4100, got '" +
                                   texts.queries + "'");
  }
  if (texts.data != "scores" && texts.data != "logits" && texts.data != "both") {
    throw CLI::ValidationError("--capture-data",
                               "must be scores, logits or both, got '" + texts.data + "'");
  }
  options->scores = texts.data != "logits";
  options->logits = texts.data != "scores";
  if (!options->path.empty()) {
    options->summary = texts.data + " of " + texts.queries + ", layers " + texts.layers +
                       ", limit " + std::to_string(options->limit);
  }
  const CaptureTexts defaults;
  const bool set = texts.layers != defaults.layers || texts.queries != defaults.queries ||
                   texts.data != defaults.data || options->limit != CaptureOptions().limit;
  if (set && options->path.empty()) {
    throw CLI::ValidationError("--capture", "is required by the other --capture options");
  }
}

void CheckCapture(const ModelConfig& config, const CaptureOptions& options) {
  if (options.layers.Greatest() >= config.layers) {
    throw std::invalid_argument("--capture-layers must be below the model's " +
                                std::to_string(config.layers) + ", got " +
                                std::to_string(options.layers.Greatest()));
  }
}

}  // namespace weft
