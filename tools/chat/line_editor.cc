#include "tools/chat/line_editor.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <cstring>
#include <cwchar>
#include <iostream>

#include "tools/chat/client.h"

#ifdef WEFT_HAVE_LIBEDIT
#include <histedit.h>
#endif

namespace weft::chat {

#ifdef WEFT_HAVE_LIBEDIT

namespace {

const char* Prompt(EditLine*) { return "> "; }
const char* MorePrompt(EditLine*) { return ". "; }

// False: Ctrl-C came, be it just before or on another thread, where no read() would notice it.
bool AwaitInput() {
  constexpr int kLookMs = 50;
  pollfd input{STDIN_FILENO, POLLIN, 0};
  while (!interrupted) {
    const int ready = poll(&input, 1, kLookMs);
    if (ready > 0 || (ready < 0 && errno != EINTR)) return true;
  }
  return false;
}

// libedit's own reader swallows the first Ctrl-C of a line: it reads on after EINTR.
int ReadCharacter(EditLine*, wchar_t* out) {
  std::mbstate_t state{};
  while (true) {
    char byte = 0;
    if (!AwaitInput()) return -1;
    const ssize_t got = read(STDIN_FILENO, &byte, 1);
    if (got < 0 && errno == EINTR && !interrupted) continue;
    if (got <= 0) return static_cast<int>(got);
    const size_t length = std::mbrtowc(out, &byte, 1, &state);
    if (length <= 1) return 1;
    if (length == static_cast<size_t>(-1)) state = {};  // no character of this encoding
  }
}

}  // namespace

struct LineEditor::State {
  EditLine* line = el_init("weft-chat", stdin, stderr, stderr);
  History* history = history_init();
  HistEvent event{};
};

LineEditor::LineEditor() {
  std::setlocale(LC_CTYPE, "");  // libedit edits characters of this encoding
  if (std::strcmp(setlocale(LC_CTYPE, nullptr), "C") == 0) std::setlocale(LC_CTYPE, "C.UTF-8");
  state_ = std::make_unique<State>();
  ::history(state_->history, &state_->event, H_SETSIZE, 200);
  el_set(state_->line, EL_PROMPT, Prompt);
  el_set(state_->line, EL_EDITOR, "emacs");
  el_set(state_->line, EL_GETCFN, ReadCharacter);
  el_set(state_->line, EL_HIST, ::history, state_->history);
}

LineEditor::~LineEditor() {
  history_end(state_->history);
  el_end(state_->line);
}

LineEditor::Kind LineEditor::Read(bool more, std::string* text) {
  el_set(state_->line, EL_PROMPT, more ? MorePrompt : Prompt);
  int count = 0;
  errno = 0;
  const char* got = el_gets(state_->line, &count);
  if (interrupted.exchange(false)) {
    el_reset(state_->line);
    return Kind::kInterrupted;
  }
  if (got == nullptr || count <= 0) return Kind::kEnd;
  text->assign(got, static_cast<size_t>(count));
  if (text->find_first_not_of(" \t\n") != std::string::npos) {
    ::history(state_->history, &state_->event, H_ENTER, got);
  }
  if (text->back() == '\n') text->pop_back();
  return Kind::kLine;
}

#else

struct LineEditor::State {
  std::string read;  // behind the last line
};

LineEditor::LineEditor() : state_(std::make_unique<State>()) {}
LineEditor::~LineEditor() = default;

LineEditor::Kind LineEditor::Read(bool more, std::string* text) {
  std::cerr << (more ? ". " : "> ");
  while (true) {
    if (const size_t end = state_->read.find('\n'); end != std::string::npos) {
      *text = state_->read.substr(0, end);
      state_->read.erase(0, end + 1);
      return Kind::kLine;
    }
    char bytes[512];
    const ssize_t got = AwaitInput() ? read(STDIN_FILENO, bytes, sizeof(bytes)) : -1;
    if (interrupted.exchange(false)) {
      state_->read.clear();
      return Kind::kInterrupted;
    }
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return Kind::kEnd;
    state_->read.append(bytes, static_cast<size_t>(got));
  }
}

#endif

}  // namespace weft::chat
