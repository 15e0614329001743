// The writers of each API.
#pragma once

#include <memory>

#include "server/reply_writer.h"

namespace dgemma::server {

std::unique_ptr<ReplyWriter> make_chat_writer(const GenerationRequest& request, const ReplyHead& head);
std::unique_ptr<ReplyWriter> make_completion_writer(const GenerationRequest& request, const ReplyHead& head);
std::unique_ptr<ReplyWriter> make_responses_writer(const GenerationRequest& request, const ReplyHead& head);
std::unique_ptr<ReplyWriter> make_messages_writer(const GenerationRequest& request, const ReplyHead& head);

// "usage" of the chat and completions APIs.
Value chat_usage(const Usage& usage);

// The count of tokens that only this server has: raw_log_tokens, where there are any, so that every other
// reply's usage is of exactly the published shape. object: what the API has for details of the prompt.
void add_raw_log(Value& object, const Usage& usage);

// finish_reason of the chat and completions APIs.
std::string_view chat_finish(Finish finish);

}  // namespace dgemma::server
