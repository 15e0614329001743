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

// finish_reason of the chat and completions APIs.
std::string_view chat_finish(Finish finish);

}  // namespace dgemma::server
