#include "tools/chat/repl.h"

#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <map>

#include "tools/chat/line_editor.h"
#include "tools/chat/parameters.h"
#include "tools/chat/printer.h"
#include "tools/chat/report.h"
#include "tools/chat/text_file.h"

namespace weft::chat {
namespace {

constexpr const char* kHelp =
    "/help (/?)                 this\n"
    "/file PATH                 put a document before the next question\n"
    "/set parameter NAME VALUE  such as temperature 0.5, or default; /set parameter lists the "
    "names\n"
    "/set system [TEXT]         set the system text, or take it away (also /system [TEXT])\n"
    "/set think, /set nothink   let the model reason first, or not\n"
    "/show info                 model and server\n"
    "/show parameters, system   what is set\n"
    "/stats [on|off]            figures after each answer, or no longer\n"
    "/save PATH, /load PATH     the conversation with its settings, as JSON\n"
    "/clear                     forget the conversation\n"
    "/bye (/exit, /quit)        leave (or Ctrl-D)\n"
    "\"\"\"                        starts and ends a text of several lines\n"
    "Ctrl-C                     stops an answer; what came of it is kept\n";

// The first word of *text, which loses it and the space around it.
std::string TakeWord(std::string* text) {
  constexpr const char* kSpace = " \t";
  const size_t begin = std::min(text->find_first_not_of(kSpace), text->size());
  const size_t end = std::min(text->find_first_of(kSpace, begin), text->size());
  std::string word = text->substr(begin, end - begin);
  text->erase(0, std::min(text->find_first_not_of(kSpace, end), text->size()));
  while (!text->empty() && (text->back() == ' ' || text->back() == '\t')) text->pop_back();
  return word;
}

class Repl {
 public:
  Repl(const Options& options, Client* client, Session* session)
      : client_(client), session_(session), stats_(options.stats) {}

  int Run() {
    if (isatty(STDERR_FILENO)) std::cerr << "/help tells the commands.\n";
    while (!leave_) {
      std::string text;
      const LineEditor::Kind kind = ReadMessage(&text);
      if (kind == LineEditor::Kind::kEnd) {
        std::cerr << "\n";
        break;
      }
      if (kind == LineEditor::Kind::kInterrupted) {
        std::cerr << "\nCtrl-D or /bye leaves.\n";
        continue;
      }
      if (text.find_first_not_of(" \t\n") == std::string::npos) continue;
      if (text[0] == '/') {
        Command(text);
      } else {
        Ask(text);
      }
    }
    return 0;
  }

 private:
  // One line, or all between two """.
  LineEditor::Kind ReadMessage(std::string* text) {
    constexpr std::string_view kFence = "\"\"\"";
    const LineEditor::Kind kind = editor_.Read(false, text);
    if (kind != LineEditor::Kind::kLine || !text->starts_with(kFence)) return kind;
    text->erase(0, kFence.size());
    while (!text->ends_with(kFence)) {
      std::string line;
      if (const auto next = editor_.Read(true, &line); next != LineEditor::Kind::kLine) return next;
      *text += (text->empty() ? "" : "\n") + line;
    }
    text->resize(text->size() - kFence.size());
    return LineEditor::Kind::kLine;
  }

  void Ask(const std::string& question) {
    if (const std::string error = Utf8Error(question, "the question"); !error.empty()) {
      return Say(error);
    }
    interrupted = false;
    Printer printer;
    const Outcome outcome = client_->Ask(session_->Request(question), printer.listener());
    printer.End();
    session_->Keep(question, outcome.answer, outcome.reasoning);
    if (outcome.interrupted) {
      interrupted = false;
      Say("(stopped)");
    } else if (!outcome.ok) {
      Say("error: " + outcome.error);
    } else if (stats_) {
      std::cerr << StatsText(outcome);
    }
  }

  void Command(std::string line) {
    struct Entry {
      void (Repl::*run)(const std::string&);
      enum { kNothing, kPath, kWords } takes;
      const char* does = "";  // with its path
    };
    static const std::map<std::string, Entry> entries = {
        {"/help", {&Repl::Help, Entry::kNothing}},
        {"/?", {&Repl::Help, Entry::kNothing}},
        {"/file", {&Repl::File, Entry::kPath, "puts a document before the next question"}},
        {"/set", {&Repl::Set, Entry::kWords}},
        {"/system", {&Repl::System, Entry::kWords}},
        {"/show", {&Repl::Show, Entry::kWords}},
        {"/stats", {&Repl::Stats, Entry::kWords}},
        {"/save", {&Repl::Save, Entry::kPath, "writes the conversation to a file"}},
        {"/load", {&Repl::Load, Entry::kPath, "goes on with a conversation that /save wrote"}},
        {"/clear", {&Repl::Clear, Entry::kNothing}},
        {"/bye", {&Repl::Leave, Entry::kNothing}},
        {"/exit", {&Repl::Leave, Entry::kNothing}},
        {"/quit", {&Repl::Leave, Entry::kNothing}}};
    const std::string name = TakeWord(&line);
    const auto found = entries.find(name);
    if (found == entries.end()) {
      return Say("There is no command " + name + "; /help tells the commands.");
    }
    const Entry& entry = found->second;
    if (entry.takes == Entry::kPath && line.empty()) {
      return Say(name + " needs a path: " + name + " PATH " + entry.does + ".");
    }
    if (entry.takes == Entry::kNothing && !line.empty()) {
      return Say(name + " takes nothing behind it; got '" + line + "'.");
    }
    (this->*entry.run)(line);
  }

  void Help(const std::string&) { std::cerr << kHelp; }
  void Leave(const std::string&) { leave_ = true; }

  void Clear(const std::string&) {
    session_->Clear();
    Say("The conversation is forgotten.");
  }

  void Stats(const std::string& wish) {
    if (!wish.empty() && wish != "on" && wish != "off") {
      return Say("There is /stats, /stats on and /stats off; got '" + wish + "'.");
    }
    stats_ = wish.empty() ? !stats_ : wish == "on";
    Say(std::string("Figures are ") + (stats_ ? "on." : "off."));
  }

  void System(const std::string& text) {
    session_->set_system(text);
    Say(text.empty() ? "There is no system text now." : "The system text is set.");
  }

  void Set(const std::string& words) {
    std::string rest = words;
    const std::string what = TakeWord(&rest);
    if (what == "parameter") return SetOne(rest);
    if (what == "system") return System(rest);
    if (what == "think" || what == "nothink") {
      session_->options().set_thinking(what == "think");
      return Say(std::string("The model ") + (what == "think" ? "reasons" : "does not reason") +
                 " before it answers.");
    }
    if (!what.empty() && HasParameter(what)) {
      return Say("Parameters are set by /set parameter " + what + (rest.empty() ? "" : " ") + rest +
                 ".");
    }
    Say("There is /set parameter, system, think and nothink" + Got(what) + ".");
  }

  void SetOne(std::string words) {
    const std::string name = TakeWord(&words);
    if (name.empty()) return Say("Parameters: " + ParameterNames());
    if (words.empty()) return Say("/set parameter " + name + " needs a value, or default.");
    std::string error;
    const bool set = SetParameter(name, words, &session_->options(), &error);
    Say(set ? name + " is " + words + "." : error);
  }

  void Show(const std::string& what) {
    std::string text;
    std::string error;
    if (what == "info") {
      if (!client_->Info(&text, &error)) return Say("error: " + error);
    } else if (what == "parameters") {
      text = ParametersText(session_->options());
      text += session_->options().thinking() ? "thinking\n" : "";
      if (text.empty()) text = "Nothing is set: the server's defaults hold.\n";
    } else if (what == "system") {
      text = session_->system().empty() ? "There is no system text.\n" : session_->system() + "\n";
    } else {
      text = "There is /show info, parameters and system" + Got(what) + ".\n";
    }
    std::cerr << text;
  }

  void File(const std::string& path) {
    std::string text;
    std::string error;
    if (!ReadText(path, &text, &error)) return Say("error: " + error);
    Say(path + ": " + std::to_string(text.size()) + " bytes go before the next question.");
    session_->set_document(std::move(text));
  }

  void Save(const std::string& path) {
    std::string error;
    const bool saved = session_->Save(path, &error);
    Say(saved ? "The conversation is in " + path + "." : "error: " + error);
  }

  void Load(const std::string& path) {
    std::string error;
    if (!session_->Load(path, &error)) return Say("error: " + error);
    Say("The conversation goes on with its " + std::to_string(session_->turns()) + " messages.");
  }

  static std::string Got(const std::string& what) {
    return what.empty() ? "" : "; got '" + what + "'";
  }

  static void Say(const std::string& sentence) { std::cerr << sentence << "\n"; }

  Client* client_;
  Session* session_;
  LineEditor editor_;
  bool stats_;
  bool leave_ = false;
};

}  // namespace

int RunRepl(const Options& options, Client* client, Session* session) {
  return Repl(options, client, session).Run();
}

}  // namespace weft::chat
