#include "server/config/options.h"

#include <CLI/CLI.hpp>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>

#include "server/config/checks.h"
#include "server/config/engine_mistakes.h"
#include "server/config/engine_rules.h"
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

Check SizeBetween(int64_t low, int64_t high) {
  return {[=](const std::string& value) {
    if (std::string error = MemorySize(0).mistake(value); !error.empty()) return error;
    if (low <= ParsedSize(value) && ParsedSize(value) <= high) return std::string();
    return "must be from " + std::to_string(low) + " to " + std::to_string(high) + " bytes; got '" +
           value + "'";
  }};
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

// What passed the check of a number. "": none by default.
nlohmann::json Number(const std::string& text) {
  if (text.empty()) return nullptr;
  const char* end = text.data() + text.size();
  int64_t whole = 0;
  const auto [last, error] = std::from_chars(text.data(), end, whole);
  if (error == std::errc() && last == end) return whole;
  double number = 0;
  std::from_chars(text.data(), end, number);
  return number;
}

nlohmann::json ToJson(const std::string& text, Kind kind) {
  if (kind == Kind::kText) return text;
  if (kind == Kind::kNumber || text.empty()) return Number(text);
  nlohmann::json list = nlohmann::json::array();
  std::istringstream items(text);
  for (std::string item; std::getline(items, item, ',');) list.push_back(Number(item));
  return list;
}

class Parser {
 public:
  Parser() : app_("weft-server: serves a DeepSeek Sparse Attention model over gRPC.") {
    app_.set_version_flag("--version", std::string("weft-server ") + WEFT_VERSION);
    app_.get_formatter()->column_width(32);
    app_.footer(
        "Exit codes: 0 when a signal stopped it, also where requests were cut off (a warning in "
        "the\n"
        "log counts them); 1 when it cannot start; 2 for wrong options.");
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
  CLI::Option* Add(const char* name, T& value, const std::string& help, const Check& check = {}) {
    CLI::Option* option = app_.add_option(name, value, help)->envname(EnvName(name));
    option->capture_default_str();
    if (check.mistake) option->check(CLI::Validator(check.mistake, ""));
    kinds_[option] = check.kind;
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
        "Seconds that running requests get to end after SIGTERM, before they are cut off",
        NumberAbove(0, 1e6, true));
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
    Add("--log-level", o.log_level, "debug, info, warn or error; also of the engine that it starts",
        OneOf({"debug", "info", "warn", "error"}));
    Add("--log-format", o.log_format, "text or json, of all lines", OneOf({"text", "json"}));
    app_.add_flag("--print-config", o.print_config, "Print the options in force, and exit");
  }

  void AddEngineOptions() {
    for (const EngineRule& rule : EngineRules()) {
      const std::string name = NameOf(rule);
      CLI::Option* option = Add(rule.name, engine_values_[name], rule.help, rule.check);
      option->default_str(rule.standard);
      option->group("Engine");
      engine_options_.push_back(option);
    }
  }

  // The options in force, in JSON.
  std::string Effective() const {
    nlohmann::ordered_json json;
    for (const CLI::Option* option : app_.get_options()) {
      const auto kind = kinds_.find(option);
      if (kind == kinds_.end()) continue;  // --help etc.
      nlohmann::ordered_json& value = json[option->get_lnames().front()];
      if (option->get_expected_max() > 1) {
        value = option->count() == 0 ? std::vector<std::string>() : option->results();
      } else {
        value = ToJson(option->count() == 0 ? option->get_default_str() : option->results().back(),
                       kind->second);
      }
    }
    return json.dump(2);
  }

  // Of those of an engine that weft-server starts, what was given beside --engine; or "".
  std::string LaunchOption() const {
    for (const CLI::Option* option : engine_options_) {
      if (option->count() > 0) return "--" + option->get_lnames().front();
    }
    for (const char* name :
         {"--ranks", "--hostfile", "--mpirun", "--mpirun-arg", "--engine-binary"}) {
      if (app_.count(name) > 0) return name;
    }
    return "";
  }

  ParseResult Finish() {
    if (const std::string name = LaunchOption(); !options_.engines.empty() && !name.empty()) {
      return Mistake(name +
                     ": is an option of an engine that weft-server starts, and --engine names one "
                     "that already runs; give the option to that engine, or to its mpirun");
    }
    for (const CLI::Option* option : engine_options_) {
      if (option->count() == 0) continue;
      const std::string name = "--" + option->get_lnames().front();
      options_.engine_flags.push_back({name, engine_values_[name]});
    }
    if (const std::string mistake = EngineMistake(engine_values_); !mistake.empty()) {
      return Mistake(mistake);
    }
    options_.stream_buffer = static_cast<size_t>(ParsedSize(stream_buffer_));
    options_.effective = Effective();
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
  std::map<const CLI::Option*, Kind> kinds_;
};

}  // namespace

ParseResult ParseOptions(int argc, const char* const* argv) { return Parser().Parse(argc, argv); }

}  // namespace weft::server
