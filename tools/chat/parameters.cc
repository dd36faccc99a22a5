#include "tools/chat/parameters.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/text_format.h>
#include <spdlog/fmt/fmt.h>

#include <charconv>
#include <vector>

namespace weft::chat {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

const std::vector<const Descriptor*>& Kinds() {
  static const std::vector<const Descriptor*> kinds = {v1::Sampling::descriptor(),
                                                       v1::Selection::descriptor()};
  return kinds;
}

bool IsSettable(const FieldDescriptor* field) {
  return !field->is_repeated() && field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE &&
         field->cpp_type() != FieldDescriptor::CPPTYPE_ENUM;
}

template <typename T>
bool ParseWhole(const std::string& text, T* out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc() && end == text.data() + text.size();
}

// Returns what the value must be, or nullptr when it was set.
const char* Set(const FieldDescriptor* field, const std::string& value, Message* message) {
  const Reflection* reflection = message->GetReflection();
  const auto number = [&](auto setter, auto zero) {
    auto parsed = zero;
    if (!ParseWhole(value, &parsed)) return false;
    (reflection->*setter)(message, field, parsed);
    return true;
  };
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_FLOAT:
      return number(&Reflection::SetFloat, 0.0f) ? nullptr : "a number";
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return number(&Reflection::SetDouble, 0.0) ? nullptr : "a number";
    case FieldDescriptor::CPPTYPE_INT32:
      return number(&Reflection::SetInt32, int32_t{0}) ? nullptr : "a whole number";
    case FieldDescriptor::CPPTYPE_INT64:
      return number(&Reflection::SetInt64, int64_t{0}) ? nullptr : "a whole number";
    case FieldDescriptor::CPPTYPE_UINT32:
      return number(&Reflection::SetUInt32, uint32_t{0}) ? nullptr : "a whole number of at least 0";
    case FieldDescriptor::CPPTYPE_UINT64:
      return number(&Reflection::SetUInt64, uint64_t{0}) ? nullptr : "a whole number of at least 0";
    case FieldDescriptor::CPPTYPE_BOOL:
      if (value != "true" && value != "false") return "true or false";
      reflection->SetBool(message, field, value == "true");
      return nullptr;
    default:
      reflection->SetString(message, field, value);
      return nullptr;
  }
}

}  // namespace

bool SetParameter(const std::string& name, const std::string& value, v1::ChatRequest* request,
                  std::string* error) {
  Message* const messages[] = {request->mutable_sampling(), request->mutable_selection()};
  for (Message* message : messages) {
    const FieldDescriptor* field =
        message->GetDescriptor()->FindFieldByName(name == "selection" ? "mode" : name);
    if (field == nullptr || !IsSettable(field)) continue;
    if (value == "default") {
      message->GetReflection()->ClearField(message, field);
      return true;
    }
    const char* rule = Set(field, value, message);
    if (rule == nullptr) return true;
    *error = fmt::format("{} must be {} or default; got '{}'", name, rule, value);
    return false;
  }
  *error = fmt::format("There is no parameter '{}'; there are {}.", name, ParameterNames());
  return false;
}

bool HasParameter(const std::string& name) {
  for (const Descriptor* kind : Kinds()) {
    const FieldDescriptor* field = kind->FindFieldByName(name == "selection" ? "mode" : name);
    if (field != nullptr && IsSettable(field)) return true;
  }
  return false;
}

std::string ParameterNames() {
  std::string names;
  for (const Descriptor* kind : Kinds()) {
    for (int i = 0; i < kind->field_count(); ++i) {
      if (!IsSettable(kind->field(i))) continue;
      const std::string& name = kind->field(i)->name();
      names += (names.empty() ? "" : ", ") + (name == "mode" ? "selection" : name);
    }
  }
  return names;
}

std::string ParametersText(const v1::ChatRequest& request) {
  std::string lines;
  const Message* const messages[] = {&request.sampling(), &request.selection()};
  for (const Message* message : messages) {
    std::vector<const FieldDescriptor*> fields;
    message->GetReflection()->ListFields(*message, &fields);
    for (const FieldDescriptor* field : fields) {
      if (!IsSettable(field)) continue;
      std::string value;
      google::protobuf::TextFormat::PrintFieldValueToString(*message, field, -1, &value);
      lines += (field->name() == "mode" ? "selection" : field->name()) + " " + value + "\n";
    }
  }
  return lines;
}

}  // namespace weft::chat
