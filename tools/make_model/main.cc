// weft-make-model: random checkpoints of any configuration, and conversions.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "engine/model/json_keys.h"
#include "tools/make_model/make_model.h"

namespace {

// KEY=VALUE, the value in JSON, or else a string. Other keys than the file's own are allowed, since
// it need not name those that have a default.
void Set(const std::string& text, nlohmann::json* config) {
  const size_t at = text.find('=');
  if (at == std::string::npos) throw CLI::ValidationError("--set", "must be KEY=VALUE");
  nlohmann::json value = nlohmann::json::parse(text.substr(at + 1), nullptr, false);
  if (value.is_discarded()) value = text.substr(at + 1);
  const std::string key = text.substr(0, at);
  if (!config->contains(key)) {
    std::fprintf(stderr,
                 "weft-make-model: --set %s: the config does not have this key; it is added\n",
                 key.c_str());
  }
  (*config)[key] = value;
}

void Report(const std::string& folder) {
  uintmax_t bytes = 0;
  int shards = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".safetensors") continue;
    bytes += entry.file_size();
    ++shards;
  }
  std::printf("wrote %s: %.1f MB of tensors in %d file%s\n", folder.c_str(),
              static_cast<double>(bytes) / 1e6, shards, shards == 1 ? "" : "s");
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "weft-make-model: random checkpoints in Hugging Face layout, and conversions.\n"
      "  weft-make-model random config.json OUT --set num_hidden_layers=4 --fp8\n"
      "  weft-make-model to-fp8 IN OUT");
  app.require_subcommand(1);
  weft::MakeOptions options;
  std::string in, out;
  std::vector<std::string> sets;
  const auto add = [&](const char* name, const char* help, const char* input) {
    CLI::App* command = app.add_subcommand(name, help);
    command->add_option("in", in, input)->required();
    command->add_option("out", out, "folder to write")->required();
    command->add_option("--shard-size", options.shard_bytes, "most bytes of a file, as 5GB")
        ->transform(CLI::AsSizeValue(true))
        ->check(CLI::Range(int64_t{1}, int64_t{1} << 62))
        ->capture_default_str();
    return command;
  };
  CLI::App* random = add("random", "a random model", "config.json");
  random->add_option("--seed", options.seed, "same seed, same bytes")->capture_default_str();
  random->add_option("--set", sets, "KEY=VALUE to change in the config (repeatable)");
  random->add_flag("--fp8", options.fp8, "projections in FP8 with 128 x 128 block scales");
  CLI::App* to_fp8 = add("to-fp8", "quantise the projections of a folder", "folder to read");
  CLI::App* to_fp32 = add("to-fp32", "dequantise the FP8 tensors of a folder", "folder to read");
  for (CLI::App* command : {random, to_fp8}) {
    command->add_flag("--ue8m0", options.ue8m0, "scales are powers of two");
  }
  try {
    app.parse(argc, argv);
    // Tensors of two checkpoints in one folder would make a third that nobody asked for.
    if (std::filesystem::exists(out) && !std::filesystem::is_empty(out)) {
      throw std::runtime_error(out + " must not exist or be an empty folder");
    }
    if (random->parsed()) {
      nlohmann::json config = weft::ReadJson(in);
      for (const std::string& set : sets) Set(set, &config);
      weft::MakeModel(config, out, options);
    } else if (to_fp8->parsed()) {
      weft::ConvertToFp8(in, out, options);
    } else if (to_fp32->parsed()) {
      weft::ConvertToFp32(in, out, options);
    }
    Report(out);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "weft-make-model: %s\n", error.what());
    return 1;
  }
  return 0;
}
