// What holds for conversations in every encoding.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "server/text/chat/message.h"
#include "server/text/result.h"

namespace weft::text {

// What an encoding has a place for.
struct ChatFeatures {
  bool developer = false;  // the role
  bool thinking = false;
  bool tools = false;  // their declarations; calls and results are in all of them
  bool response_format = false;
  bool reasoning_effort = false;
  bool keep_reasoning = false;
};

// The first thing that is wrong: field, rule and value.
std::optional<Error> CheckConversation(std::span<const Message> messages,
                                       const ChatOptions& options, const ChatFeatures& features,
                                       std::string_view encoding);

// The index of the last message whose role is `user` or, with `developer`, that; -1: none.
int LastUserIndex(std::span<const Message> messages, bool developer);

// How many calls the assistant's message before a tool message made, and which of the results this
// one is, from 0. Carried from message to message, from {} on.
struct ResultPlace {
  int order = 0;
  int calls = 0;
};
// The place of a result right after `message`, whose own is `place`.
ResultPlace PlaceAfter(const Message& message, ResultPlace place);

}  // namespace weft::text
