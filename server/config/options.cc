#include "server/config/options.h"

#include <CLI/CLI.hpp>
#include <cctype>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>

#include "server/config/checks.h"
#include "server/config/engine_mistakes.h"
#include "server/text/chat/encodings.h"

namespace weft::server {
namespace {

// "--index-topk" -> "WEFT_INDEX_TOPK"
std::string EnvName(const std::string& flag) {
  std::string name = "WEFT_";
  for (const char c : flag.substr(2, flag.find(',') - 2)) {
    name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return name;
}

struct EngineFlagRule {
  const char* name;
  const char* help;
  const char* standard;  // the engine's own default, for --help; tests compare them
  Check check;
};

std::vector<EngineFlagRule> SelectionFlagRules() {
  return {
      {"--selection", "How attention selects: exact, interleaved, certified or dense",
       "interleaved", OneOf({"exact", "interleaved", "certified", "dense"})},
      {"--index-topk", "K, the tokens a query selects; 0: the model's own", "0",
       IntegerBetween(0, 1 << 20)},
      {"--max-index-topk",
       "The largest K that a request may ask for; 0: the greater of the model's and --index-topk",
       "0", IntegerBetween(0, 1 << 20)},
      {"--coverage",
       "gamma, the wanted probability that the union holds the exact top-K; by default 0.99, and "
       "0.99999 in certified mode",
       "", NumberAbove(0, 1, false)},
      {"--m-rule", "How m comes from K, G and gamma: exact or formula", "exact",
       OneOf({"exact", "formula"})},
      {"--margin", "m by layer: auto, from the loads that were seen (CPU backend alone), or off",
       "off", OneOf({"auto", "off"})},
      {"--placement", "Which rank holds a token: rotated or round-robin", "rotated",
       OneOf({"rotated", "round-robin"})},
      {"--block-size", "b, neighbouring tokens that stay on one rank", "1",
       IntegerBetween(1, 4096)},
  };
}

std::vector<EngineFlagRule> SchedulerFlagRules() {
  return {
      {"--max-step-tokens,--chunk", "Most tokens of one step, prefill chunks and decode together",
       "512", IntegerBetween(1, 65536)},
      {"--max-step-ratio",
       "Longest step while answers stream, over that of the answers alone; 0: no limit", "2",
       NumberAbove(0, 1e6, true)},
      {"--max-step-ms", "The same as a time, in ms; 0: no limit", "0", NumberAbove(0, 1e6, true)},
      {"--priority-aging", "Seconds of waiting that count as one priority more", "30",
       NumberAbove(1e-3, 1e6, true)},
      {"--prefix-cache", "Keep prompts' caches for prompts that begin alike: on or off", "on",
       OneOf({"on", "off"})},
      {"--max-waiting", "Requests that may wait in the engine", "1024", IntegerBetween(0, 1 << 30)},
      {"--max-waiting-per-client", "The same of one client_id; 0: no limit of its own", "0",
       IntegerBetween(0, 1 << 30)},
      {"--max-context", "Longest sequence, prompt and output together; 0: the model's", "0",
       IntegerBetween(0, 1 << 24)},
      {"--max-sequences", "Sequences that run at the same time", "64", IntegerBetween(1, 65536)},
  };
}

std::vector<EngineFlagRule> MachineFlagRules() {
  return {
      {"--kv-dtype", "Latent cache: bf16, fp32 or fp8", "bf16", OneOf({"bf16", "fp32", "fp8"})},
      {"--index-dtype", "Index keys: bf16, fp32 or fp8", "bf16", OneOf({"bf16", "fp32", "fp8"})},
      {"--kv-memory",
       "Memory for the caches of one rank, such as 8GiB; 0: room for four longest contexts within "
       "40 % of what is free",
       "0", MemorySize(0)},
      {"--threads", "Threads of one rank; 0: the cores over the ranks of the host", "0",
       IntegerBetween(0, 1024)},
      {"--backend", "Where the ranks compute: auto, cpu or cuda; auto takes GPUs if all have one",
       "auto", OneOf({"auto", "cpu", "cuda"})},
      {"--device", "GPUs of a host by the ranks on it, as 0,2; by default in their order", "",
       DeviceList()},
      {"--share-device", "Let several ranks use one GPU, slowly: on or off", "off",
       OneOf({"on", "off"})},
      {"--isa", "Instruction set of the CPU kernels: auto, scalar, avx2 or avx512", "auto",
       OneOf({"auto", "scalar", "avx2", "avx512"})},
      {"--exchange", "What travels to meet the other: rows or partial (queries)", "rows",
       OneOf({"rows", "partial"})},
      {"--peer-access",
       "Let the GPUs of a host read each other's memory in decode steps: on or off", "on",
       OneOf({"on", "off"})},
      {"--deterministic",
       "On GPUs, the same tokens in any batch and after a failure, slowly: on or off", "off",
       OneOf({"on", "off"})},
      {"--partition", "How ranks share weights: gather or reduce", "gather",
       OneOf({"gather", "reduce"})},
      {"--experts", "With --partition reduce, experts auto, split over the ranks or whole", "auto",
       OneOf({"auto", "split", "whole"})},
      {"--page-tokens", "P, tokens of a cache page on one rank, a multiple of 16 and of b", "64",
       MultipleBetween(16, 16, 4096)},
      {"--exchange-memory", "Workspace of the exchange per rank", "64MiB", MemorySize(1)},
      {"--startup-timeout", "Seconds the ranks wait for one another at start", "600",
       NumberAbove(0, 1e6, false)},
      {"--step-timeout", "Seconds a collective may take before the engine gives up", "300",
       NumberAbove(0, 1e6, false)},
  };
}

Check SizeBetween(int64_t low, int64_t high) {
  return [=](const std::string& value) {
    if (std::string error = MemorySize(0)(value); !error.empty()) return error;
    if (low <= ParsedSize(value) && ParsedSize(value) <= high) return std::string();
    return "must be from " + std::to_string(low) + " to " + std::to_string(high) + " bytes; got '" +
           value + "'";
  };
}

Check ChatEncodingName() {
  std::vector<std::string> names;
  for (const text::ChatEncoding& encoding : text::ChatEncodings())
    names.emplace_back(encoding.name);
  return OneOf(std::move(names));
}

// Options given and their origin, after parsing.
std::string Changed(const CLI::App& app) {
  std::string text;
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() == 0 || option->get_lnames().empty()) continue;
    std::string values;
    for (const std::string& value : option->results())
      values += (values.empty() ? "" : " ") + value;
    text += (text.empty() ? "" : ", ") + option->get_lnames().front() + "=" + values;
  }
  return text;
}

std::string Effective(const CLI::App& app) {
  nlohmann::ordered_json json;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_lnames().empty() || option->get_envname().empty()) continue;  // --help etc.
    const std::string& name = option->get_lnames().front();
    if (option->count() == 0) {
      json[name] = option->get_default_str();
    } else if (option->get_expected_max() > 1) {
      json[name] = option->results();
    } else {
      json[name] = option->results().back();
    }
  }
  return json.dump(2);
}

class Parser {
 public:
  Parser() : app_("weft-server: serves a DeepSeek Sparse Attention model over gRPC.") {
    app_.set_version_flag("--version", std::string("weft-server ") + WEFT_VERSION);
    app_.get_formatter()->column_width(32);
    AddServerOptions();
    AddEngineOptions();
  }

  ParseResult Parse(int argc, const char* const* argv) {
    try {
      app_.parse(argc, argv);
      return Finish();
    } catch (const CLI::Success& e) {  // help, version
      std::ostringstream out;
      app_.exit(e, out, out);
      ParseResult result;
      result.message = out.str();
      return result;
    } catch (const CLI::ParseError& e) {
      return Mistake(e.what());
    }
  }

 private:
  static ParseResult Mistake(const std::string& sentence) {
    ParseResult result;
    result.exit_code = 2;
    result.message = sentence + " (weft-server --help lists the options)\n";
    return result;
  }

  // WEFT_* values pass the same check as flags, and flags go before them.
  template <typename T>
  CLI::Option* Add(const char* name, T& value, const std::string& help,
                   const Check& check = nullptr) {
    CLI::Option* option = app_.add_option(name, value, help)->envname(EnvName(name));
    option->capture_default_str();
    if (check) option->check(CLI::Validator(check, ""));
    return option;
  }

  void AddServerOptions() {
    Options& o = options_;
    Add("--model", o.model, "The model's Hugging Face folder", ExistingFolder())->required();
    Add("--ranks", o.ranks, "G, processes that share the model", IntegerBetween(1, 65536));
    Add("--listen", o.listen, "Where clients connect, HOST:PORT", HostPort());
    Add("--engine", o.engines,
        "Use the engine at HOST:PORT instead of starting one; several are replicas", HostPort())
        ->allow_extra_args(false)
        ->delimiter(',');
    Add("--engine-binary", o.engine_binary, "weft-engine, by default the one beside weft-server",
        ExistingFile());
    Add("--mpirun", o.mpirun, "The MPI launcher");
    Add("--hostfile", o.hostfile, "mpirun's host file", ExistingFile());
    Add("--mpirun-arg", o.mpirun_args, "One more argument for mpirun; may be repeated")
        ->allow_extra_args(false)
        ->delimiter('\0');
    Add("--drain-timeout", o.drain_timeout_seconds,
        "Seconds that running requests get to end after SIGTERM", NumberAbove(0, 1e6, true));
    Add("--replay-timeout", o.replay_timeout_seconds,
        "Seconds that a request waits for the next engine when its own is lost; 0: it ends",
        NumberAbove(0, 1e6, true));
    Add("--give-up-after", o.most_deaths,
        "Engines in a row that may die with a request that is suspected of it, and so tried alone, "
        "before it ends with INTERNAL; 0: it never does",
        IntegerBetween(0, 1000000));
    Add("--stream-buffer", stream_buffer_,
        "What may wait for one client that reads slowly; then its request pauses",
        SizeBetween(int64_t{1} << 10, int64_t{1} << 30));
    Add("--stall-timeout", o.stall_timeout_seconds,
        "Seconds after which the paused request of a client that takes nothing ends with "
        "RESOURCE_EXHAUSTED; 0: never",
        NumberAbove(0, 1e6, true));
    Add("--keepalive", o.keepalive_seconds,
        "Seconds after which a silent connection is asked for a sign of life; it ends without one "
        "in as many, at most 20; 0: never",
        NumberAbove(0, 1e6, true));
    Add("--chat-encoding", o.chat_encoding,
        "How chats become prompts, by default as the model folder says: " +
            text::ChatEncodingNames(),
        ChatEncodingName());
    Add("--log-level", o.log_level, "debug, info, warn or error",
        OneOf({"debug", "info", "warn", "error"}));
    Add("--log-format", o.log_format, "text or json", OneOf({"text", "json"}));
    app_.add_flag("--print-config", o.print_config, "Print the options in force, and exit");
  }

  void AddEngineOptions() {
    for (const auto& rules : {SelectionFlagRules(), SchedulerFlagRules(), MachineFlagRules()}) {
      for (const EngineFlagRule& rule : rules) {
        const std::string name(rule.name, std::strcspn(rule.name, ","));  // without aliases
        CLI::Option* option = Add(rule.name, engine_values_[name], rule.help, rule.check);
        option->default_str(rule.standard);
        option->group("Engine");
        engine_options_.push_back(option);
      }
    }
  }

  ParseResult Finish() {
    for (const CLI::Option* option : engine_options_) {
      if (option->count() == 0) continue;
      const std::string name = "--" + option->get_lnames().front();
      options_.engine_flags.push_back({name, engine_values_[name]});
    }
    if (!options_.engines.empty() && !options_.engine_flags.empty()) {
      return Mistake(options_.engine_flags.front().name +
                     ": is an option of an engine that weft-server starts, and --engine names one "
                     "that already runs; give the option to that engine");
    }
    if (const std::string mistake = EngineMistake(engine_values_); !mistake.empty()) {
      return Mistake(mistake);
    }
    options_.stream_buffer = static_cast<size_t>(ParsedSize(stream_buffer_));
    options_.effective = Effective(app_);
    options_.changed = Changed(app_);
    ParseResult result;
    result.run = true;
    result.options = options_;
    return result;
  }

  CLI::App app_;
  Options options_;
  std::string stream_buffer_ = "64KiB";
  std::map<std::string, std::string> engine_values_;
  std::vector<const CLI::Option*> engine_options_;
};

}  // namespace

ParseResult ParseOptions(int argc, const char* const* argv) { return Parser().Parse(argc, argv); }

}  // namespace weft::server
