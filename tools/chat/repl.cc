#include "tools/chat/repl.h"

#include <histedit.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <cstring>
#include <cwchar>
#include <fstream>
#include <iostream>
#include <optional>
#include <sstream>

#include "tools/chat/report.h"

namespace weft::chat {
namespace {

constexpr const char* kHelp =
    "/help           this\n"
    "/file PATH      put a document before the next question\n"
    "/system [TEXT]  set the system text, or take it away\n"
    "/stats          figures after each answer, on or off\n"
    "/clear          forget the conversation\n"
    "/bye            leave (or Ctrl-D)\n"
    "\"\"\"             starts and ends a text of several lines\n"
    "Ctrl-C          stops an answer; what came of it is kept\n";

const char* Prompt(EditLine*) { return "> "; }
const char* MorePrompt(EditLine*) { return ". "; }

// libedit's own reader swallows the first Ctrl-C of a line: it reads on after EINTR.
int ReadCharacter(EditLine*, wchar_t* out) {
  std::mbstate_t state{};
  while (true) {
    char byte = 0;
    const ssize_t got = read(STDIN_FILENO, &byte, 1);
    if (got < 0 && errno == EINTR && !interrupted) continue;
    if (got <= 0) return static_cast<int>(got);
    const size_t length = std::mbrtowc(out, &byte, 1, &state);
    if (length <= 1) return 1;
    if (length == static_cast<size_t>(-1)) state = {};  // no character of this encoding
  }
}

// Lines from the terminal, with editing and history.
class LineEditor {
 public:
  enum class Kind { kLine, kInterrupted, kEnd };

  LineEditor() : line_(el_init("weft-chat", stdin, stderr, stderr)), history_(history_init()) {
    history(history_, &event_, H_SETSIZE, 200);
    el_set(line_, EL_PROMPT, Prompt);
    el_set(line_, EL_EDITOR, "emacs");
    el_set(line_, EL_GETCFN, ReadCharacter);
    el_set(line_, EL_HIST, history, history_);
  }
  ~LineEditor() {
    history_end(history_);
    el_end(line_);
  }
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  Kind Read(bool more, std::string* text) {
    el_set(line_, EL_PROMPT, more ? MorePrompt : Prompt);
    int count = 0;
    errno = 0;
    const char* got = el_gets(line_, &count);
    if (interrupted.exchange(false)) {
      el_reset(line_);
      return Kind::kInterrupted;
    }
    if (got == nullptr || count <= 0) return Kind::kEnd;
    text->assign(got, static_cast<size_t>(count));
    if (text->find_first_not_of(" \t\n") != std::string::npos) {
      history(history_, &event_, H_ENTER, got);
    }
    if (text->back() == '\n') text->pop_back();
    return Kind::kLine;
  }

 private:
  EditLine* line_;
  History* history_;
  HistEvent event_{};
};

class Repl {
 public:
  Repl(const Options& options, Client* client, Session* session)
      : client_(client), session_(session), stats_(options.stats) {}

  int Run() {
    if (isatty(STDERR_FILENO)) std::cerr << "/help tells the commands.\n";
    while (true) {
      std::string text;
      const LineEditor::Kind kind = ReadMessage(&text);
      if (kind == LineEditor::Kind::kEnd) {
        std::cerr << "\n";
        return 0;
      }
      if (kind == LineEditor::Kind::kInterrupted) {
        std::cerr << "\nCtrl-D or /bye leaves.\n";
        continue;
      }
      if (text.find_first_not_of(" \t\n") == std::string::npos) continue;
      if (text[0] != '/') {
        Ask(text);
      } else if (!Command(text)) {
        return 0;
      }
    }
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
      *text += "\n" + line;
    }
    text->resize(text->size() - kFence.size());
    return LineEditor::Kind::kLine;
  }

  void Ask(const std::string& question) {
    interrupted = false;
    const Outcome outcome = client_->Ask(session_->Request(question), [](std::string_view text) {
      std::cout << text << std::flush;
    });
    if (!outcome.answer.empty()) std::cout << std::endl;
    session_->Keep(question, outcome.answer);
    if (outcome.interrupted) {
      interrupted = false;
      std::cerr << "(stopped)\n";
    } else if (!outcome.ok) {
      std::cerr << "error: " << outcome.error << "\n";
    } else if (stats_) {
      std::cerr << StatsText(outcome);
    }
  }

  // Returns false to leave.
  bool Command(const std::string& line) {
    std::istringstream words(line);
    std::string name;
    std::string rest;
    words >> name >> std::ws;
    std::getline(words, rest);
    while (!rest.empty() && rest.back() == ' ') rest.pop_back();
    if (name == "/bye" || name == "/exit") return false;
    if (name == "/help" || name == "/?") {
      std::cerr << kHelp;
    } else if (name == "/clear") {
      session_->Clear();
      std::cerr << "The conversation is forgotten.\n";
    } else if (name == "/stats") {
      stats_ = !stats_;
      std::cerr << "Figures are " << (stats_ ? "on" : "off") << ".\n";
    } else if (name == "/system") {
      session_->set_system(rest);
      std::cerr << (rest.empty() ? "There is no system text now.\n" : "The system text is set.\n");
    } else if (name == "/file") {
      LoadFile(rest);
    } else {
      std::cerr << "There is no command " << name << "; /help tells the commands.\n";
    }
    return true;
  }

  void LoadFile(const std::string& path) {
    std::string text;
    std::string error;
    if (!ReadWhole(path, &text, &error)) {
      std::cerr << error << "\n";
      return;
    }
    std::cerr << path << ": " << text.size() << " bytes go before the next question.\n";
    session_->set_document(std::move(text));
  }

  Client* client_;
  Session* session_;
  LineEditor editor_;
  bool stats_;
};

}  // namespace

int RunRepl(const Options& options, Client* client, Session* session) {
  std::setlocale(LC_CTYPE, "");  // libedit edits characters of this encoding
  if (std::strcmp(setlocale(LC_CTYPE, nullptr), "C") == 0) std::setlocale(LC_CTYPE, "C.UTF-8");
  return Repl(options, client, session).Run();
}

bool ReadWhole(const std::string& path, std::string* text, std::string* error) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream all;
  all << file.rdbuf();
  if (!file || path.empty()) {
    *error = "error: cannot read '" + path + "': " + std::strerror(errno);
    return false;
  }
  *text = all.str();
  while (!text->empty() && (text->back() == '\n' || text->back() == '\r')) text->pop_back();
  return true;
}

}  // namespace weft::chat
