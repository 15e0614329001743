// GET /openapi.json.
#include "server/service.h"

namespace dgemma::server {

std::string_view openapi_json() {
    // Requests and replies are those of the two makers' published APIs; what is said here is where they are,
    // and what is ours.
    static constexpr std::string_view text = R"json({
  "openapi": "3.1.0",
  "info": {"title": "dgemma", "version": "1", "description": "A server for DiffusionGemma that speaks the APIs of OpenAI and Anthropic. Fields that cannot be honoured are refused with 400 and the field's name."},
  "security": [{"bearer": []}, {"key": []}],
  "paths": {
    "/v1/chat/completions": {"post": {"summary": "OpenAI chat completion; with stream, server-sent events", "requestBody": {"$ref": "#/components/requestBodies/Chat"}, "responses": {"200": {"description": "chat.completion, or chat.completion.chunk events"}, "default": {"$ref": "#/components/responses/Error"}}}},
    "/v1/completions": {"post": {"summary": "OpenAI completion: goes on with a text", "requestBody": {"$ref": "#/components/requestBodies/Completion"}, "responses": {"200": {"description": "text_completion"}, "default": {"$ref": "#/components/responses/Error"}}}},
    "/v1/responses": {"post": {"summary": "OpenAI response: items in, items out; kept for previous_response_id unless store is false", "requestBody": {"$ref": "#/components/requestBodies/Response"}, "responses": {"200": {"description": "response, or response.* events"}, "default": {"$ref": "#/components/responses/Error"}}}},
    "/v1/responses/input_tokens": {"post": {"summary": "Tokens of a response's prompt", "requestBody": {"$ref": "#/components/requestBodies/Response"}, "responses": {"200": {"description": "response.input_tokens", "content": {"application/json": {"schema": {"type": "object", "properties": {"object": {"type": "string"}, "input_tokens": {"type": "integer"}}}}}}, "default": {"$ref": "#/components/responses/Error"}}}},
    "/v1/responses/{response_id}": {"parameters": [{"name": "response_id", "in": "path", "required": true, "schema": {"type": "string"}}], "get": {"summary": "A response that is still kept", "responses": {"200": {"description": "response"}, "default": {"$ref": "#/components/responses/Error"}}}, "delete": {"summary": "Forgets it", "responses": {"200": {"description": "response, deleted"}, "default": {"$ref": "#/components/responses/Error"}}}},
    "/v1/responses/{response_id}/input_items": {"parameters": [{"name": "response_id", "in": "path", "required": true, "schema": {"type": "string"}}], "get": {"summary": "What it answered", "parameters": [{"name": "limit", "in": "query", "schema": {"type": "integer", "minimum": 1, "maximum": 100, "default": 20}}, {"name": "order", "in": "query", "schema": {"type": "string", "enum": ["asc", "desc"], "default": "desc"}}, {"name": "after", "in": "query", "description": "the id of an item: those behind it", "schema": {"type": "string"}}], "responses": {"200": {"description": "list"}, "default": {"$ref": "#/components/responses/Error"}}}},
    "/v1/messages": {"post": {"summary": "Anthropic message", "requestBody": {"$ref": "#/components/requestBodies/Message"}, "responses": {"200": {"description": "message, or message_* and content_block_* events"}, "default": {"$ref": "#/components/responses/MessageError"}}}},
    "/v1/messages/count_tokens": {"post": {"summary": "Tokens of a message's prompt", "requestBody": {"$ref": "#/components/requestBodies/Message"}, "responses": {"200": {"description": "input_tokens", "content": {"application/json": {"schema": {"type": "object", "properties": {"input_tokens": {"type": "integer"}}}}}}, "default": {"$ref": "#/components/responses/MessageError"}}}},
    "/v1/models": {"get": {"summary": "The models that are served", "responses": {"200": {"description": "list"}}}},
    "/v1/models/{model}": {"get": {"summary": "One of them", "parameters": [{"name": "model", "in": "path", "required": true, "schema": {"type": "string"}}], "responses": {"200": {"description": "model"}, "default": {"$ref": "#/components/responses/Error"}}}},
    "/tokenize": {"post": {"summary": "Text, or messages as the model reads them, to token ids", "requestBody": {"content": {"application/json": {"schema": {"type": "object", "properties": {"model": {"type": "string"}, "text": {"type": "string"}, "messages": {"type": "array", "items": {"type": "object"}}, "tools": {"type": "array", "items": {"type": "object"}}, "enable_thinking": {"type": "boolean"}, "add_generation_prompt": {"type": "boolean"}}}}}}, "responses": {"200": {"description": "tokens and their count", "content": {"application/json": {"schema": {"type": "object", "properties": {"tokens": {"type": "array", "items": {"type": "integer"}}, "count": {"type": "integer"}}}}}}}}},
    "/detokenize": {"post": {"summary": "Token ids to text", "requestBody": {"content": {"application/json": {"schema": {"type": "object", "required": ["tokens"], "properties": {"model": {"type": "string"}, "tokens": {"type": "array", "items": {"type": "integer"}}, "skip_special": {"type": "boolean"}}}}}}, "responses": {"200": {"description": "text", "content": {"application/json": {"schema": {"type": "object", "properties": {"text": {"type": "string"}}}}}}}}},
    "/health": {"get": {"security": [], "summary": "200 when the models are loaded, 503 before that and while the server ends", "responses": {"200": {"description": "ok"}, "503": {"description": "loading or draining"}}}},
    "/metrics": {"get": {"summary": "Counters for Prometheus", "responses": {"200": {"description": "text format 0.0.4"}}}}
  },
  "components": {
    "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}, "key": {"type": "apiKey", "in": "header", "name": "x-api-key"}},
    "responses": {
      "Error": {"description": "an error; code context_length_exceeded has the numbers in its message, 429 and 503 say when to try again in Retry-After", "content": {"application/json": {"schema": {"type": "object", "properties": {"error": {"type": "object", "properties": {"message": {"type": "string"}, "type": {"type": "string"}, "param": {"type": ["string", "null"]}, "code": {"type": "string"}}}}}}}},
      "MessageError": {"description": "an error", "content": {"application/json": {"schema": {"type": "object", "properties": {"type": {"const": "error"}, "error": {"type": "object", "properties": {"type": {"type": "string"}, "message": {"type": "string"}}}, "request_id": {"type": "string"}}}}}}
    },
    "requestBodies": {
      "Chat": {"content": {"application/json": {"schema": {"allOf": [{"$ref": "#/components/schemas/Sampling"}, {"type": "object", "required": ["messages"], "properties": {"messages": {"type": "array", "items": {"type": "object"}}, "max_tokens": {"type": "integer"}, "max_completion_tokens": {"type": "integer"}, "stop": {"type": ["string", "array"]}, "tools": {"type": "array", "items": {"type": "object"}}, "tool_choice": {"type": ["string", "object"]}, "parallel_tool_calls": {"type": "boolean"}, "stream_options": {"type": "object"}, "reasoning_effort": {"type": "string"}}}]}}}},
      "Completion": {"content": {"application/json": {"schema": {"allOf": [{"$ref": "#/components/schemas/Sampling"}, {"type": "object", "required": ["prompt"], "properties": {"prompt": {"type": ["string", "array"]}, "max_tokens": {"type": "integer"}, "stop": {"type": ["string", "array"]}, "stream_options": {"type": "object"}}}]}}}},
      "Response": {"content": {"application/json": {"schema": {"allOf": [{"$ref": "#/components/schemas/Sampling"}, {"type": "object", "required": ["input"], "properties": {"input": {"type": ["string", "array"]}, "instructions": {"type": "string"}, "max_output_tokens": {"type": "integer"}, "tools": {"type": "array", "items": {"type": "object"}}, "tool_choice": {"type": ["string", "object"]}, "parallel_tool_calls": {"type": "boolean"}, "reasoning": {"type": "object"}, "include": {"type": "array", "items": {"type": "string"}}, "previous_response_id": {"type": "string", "description": "of a response that is still kept"}, "store": {"type": "boolean", "default": true, "description": "whether the response is kept"}}}]}}}},
      "Message": {"content": {"application/json": {"schema": {"allOf": [{"$ref": "#/components/schemas/Sampling"}, {"type": "object", "required": ["messages", "max_tokens"], "properties": {"messages": {"type": "array", "items": {"type": "object"}}, "system": {"type": ["string", "array"]}, "max_tokens": {"type": "integer"}, "stop_sequences": {"type": "array", "items": {"type": "string"}}, "tools": {"type": "array", "items": {"type": "object"}}, "tool_choice": {"type": "object"}, "thinking": {"type": "object"}}}]}}}}
    },
    "schemas": {
      "Sampling": {"type": "object", "properties": {"model": {"type": "string"}, "stream": {"type": "boolean"}, "temperature": {"type": "number", "minimum": 0, "maximum": 2, "description": "0, the default, takes the most probable token; T draws from the logits over the schedule's temperature times T"}, "top_p": {"type": "number"}, "top_k": {"type": "integer"}, "seed": {"type": "integer", "description": "without one a random seed is chosen; the reply says which, in diffusion.seed"}, "enable_thinking": {"type": "boolean"}, "chat_template_kwargs": {"type": "object", "properties": {"enable_thinking": {"type": "boolean"}, "preserve_thinking": {"type": "boolean"}}}, "diffusion": {"$ref": "#/components/schemas/Diffusion"}}},
      "Diffusion": {"type": "object", "properties": {"steps": {"type": "integer", "minimum": 1}, "entropy_bound": {"type": "number"}, "confidence_threshold": {"type": "number"}, "sampler": {"enum": ["entropy-bound", "confidence-threshold"]}, "canvas_length": {"type": "integer", "minimum": 1}, "exact": {"type": "boolean"}, "drafts": {"type": "boolean", "description": "in a stream: the canvas after each step, in events that ordinary clients pass over"}}}
    }
  }
})json";
    return text;
}

}  // namespace dgemma::server
