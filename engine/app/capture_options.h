// Options of weft-engine --capture.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "engine/model/config.h"
#include "engine/run/capture_options.h"

namespace weft {

// As on the command line: texts of sets, read by ResolveCapture.
struct CaptureTexts {
  std::string layers = "all", queries = "all", data = "scores";
};

void AddCaptureOptions(CLI::App& app, CaptureTexts* texts, CaptureOptions* options);

// After parsing; throws CLI::ValidationError.
void ReadCaptureTexts(const CaptureTexts& texts, CaptureOptions* options);

// Throws std::invalid_argument when the model has no such layer.
void CheckCapture(const ModelConfig& config, const CaptureOptions& options);

}  // namespace weft
