// What the client libraries hide: every event of every stream against the official types, CORS, tokens, errors.
import assert from 'node:assert/strict';
import fs from 'node:fs';
import path from 'node:path';
import {test} from 'node:test';
import ts from 'typescript';
import * as s from './support.mjs';

const chatTools = [{type: 'function', function: {name: 'get_weather', description: s.weatherText, parameters: s.weatherSchema}}];
const replies = [];  // [type, JSON]
const note = (type, json) => replies.push([type, json]);

async function streamed(route, body, type) {
  const response = await s.post(route, {model: 'demo', stream: true, seed: 0, ...body});
  assert.equal(response.status, 200);
  assert.match(response.headers.get('content-type'), /^text\/event-stream/);
  const events = s.eventsOf(await response.text());
  assert.ok(events.length > 1);
  for (const {event, data} of events) {
    if (data === '[DONE]') continue;
    const json = JSON.parse(data);
    if (json.type === 'ping' || json.type === 'response.diffusion.draft') continue;
    if (json.type) assert.equal(event, json.type);
    note(type, data);
  }
}
async function whole(route, body, type) {
  const response = await s.post(route, {model: 'demo', seed: 0, ...body});
  assert.equal(response.status, 200);
  note(type, await response.text());
}

test('events and replies are of the official types', async () => {
  const messages = (content) => [{role: 'user', content}];
  for (const fields of [{}, {tools: chatTools, tool_choice: 'required'}, {enable_thinking: true, stream_options: {include_usage: true}}, {diffusion: {drafts: true}}, {max_tokens: 3}]) {
    const body = {messages: messages(fields.enable_thinking ? s.hard : s.question), ...fields};
    await streamed('/v1/chat/completions', body, 'ChatChunk');
    delete body.stream_options;
    await whole('/v1/chat/completions', body, 'Chat');
  }
  await streamed('/v1/completions', {prompt: 'The', max_tokens: 5}, 'Completion');
  await whole('/v1/completions', {prompt: 'The', max_tokens: 5}, 'Completion');
  const functions = chatTools.map((tool) => ({type: 'function', strict: false, ...tool.function}));
  for (const fields of [{}, {tools: functions, tool_choice: 'required'}, {enable_thinking: true, include: ['reasoning.encrypted_content']}, {reasoning: {effort: 'low', summary: 'auto'}}, {max_output_tokens: 3}, {diffusion: {drafts: true}}]) {
    const body = {input: fields.enable_thinking || fields.reasoning ? s.hard : s.question, ...fields};
    await streamed('/v1/responses', body, 'ResponseEvent');
    await whole('/v1/responses', body, 'Response');
  }
  const anthropicTools = [{name: 'get_weather', description: s.weatherText, input_schema: s.weatherSchema}];
  for (const fields of [{}, {tools: anthropicTools, tool_choice: {type: 'any'}}, {thinking: {type: 'enabled', budget_tokens: 1024}}, {stop_sequences: [' Paris']}, {max_tokens: 3}, {diffusion: {drafts: true}}]) {
    const body = {max_tokens: 200, messages: messages(fields.thinking ? s.hard : s.question), ...fields};
    await streamed('/v1/messages', body, 'MessageEvent');
    await whole('/v1/messages', body, 'Message');
  }

  // A tool turn that goes on from its raw token log, since it is told a thought that was never thought, says so in usage.
  const thought = 'They want to know about the weather in Suva.', sunny = 'sunny, 16 degrees';
  const rawLog = async (route, body, type, details) => {
    await streamed(route, body, type);
    note(type.replace('Chunk', '').replace('Event', ''), await (await s.post(route, {model: 'demo', seed: 0, ...body, stream_options: undefined})).text());
    const {usage} = JSON.parse(replies.at(-1)[1]);
    assert.ok(details(usage).raw_log_tokens > 0, route);
  };
  const first = async (route, body) => (await s.post(route, {model: 'demo', seed: 0, ...body})).json();
  const asked = {role: 'user', content: s.weatherQuestion};
  const {message} = (await first('/v1/chat/completions', {messages: [asked], tools: chatTools})).choices[0];
  await rawLog('/v1/chat/completions', {tools: chatTools, stream_options: {include_usage: true}, messages: [
    asked, {...message, reasoning_content: thought}, {role: 'tool', tool_call_id: message.tool_calls[0].id, content: sunny}]},
    'ChatChunk', (usage) => usage.prompt_tokens_details);
  const item = (await first('/v1/responses', {input: [asked], tools: functions})).output[0];
  await rawLog('/v1/responses', {tools: functions, input: [
    asked, {type: 'reasoning', summary: [{type: 'summary_text', text: thought}]}, item,
    {type: 'function_call_output', call_id: item.call_id, output: sunny}]}, 'ResponseEvent', (usage) => usage.input_tokens_details);
  const block = (await first('/v1/messages', {max_tokens: 64, messages: [asked], tools: anthropicTools})).content[0];
  await rawLog('/v1/messages', {max_tokens: 64, tools: anthropicTools, messages: [
    asked, {role: 'assistant', content: [{type: 'thinking', thinking: thought, signature: ''}, block]},
    {role: 'user', content: [{type: 'tool_result', tool_use_id: block.id, content: sunny}]}]}, 'MessageEvent', (usage) => usage);

  // Kept responses and their input, with items of every kind, some of them as short as they may be sent.
  const kept = await first('/v1/responses', {tools: functions, input: [
    {role: 'system', content: 'Be short.'}, asked, {role: 'assistant', content: 'One moment.'}, {type: 'reasoning', id: 'rs_1', summary: []},
    {type: 'function_call', call_id: 'call_1', name: 'get_weather', arguments: '{"city":"Suva"}'},
    {type: 'function_call_output', call_id: 'call_1', output: sunny}]});
  const get = async (path) => (await fetch(`${s.url}/v1/responses/${path}`, {headers: {authorization: `Bearer ${s.apiKey}`}})).text();
  note('Response', await get(kept.id));
  note('ResponseItemList', await get(`${kept.id}/input_items`));

  // What is ours besides is declared, so that anything else that is too much is found.
  const head = `
import type {ChatCompletion, ChatCompletionChunk} from 'openai/resources/chat/completions';
import type {Completion as OpenAICompletion} from 'openai/resources/completions';
import type {Response as OpenAIResponse, ResponseStreamEvent} from 'openai/resources/responses/responses';
import type {ResponseItemList} from 'openai/resources/responses/input-items';
import type {Message as AnthropicMessage, RawMessageStreamEvent} from '@anthropic-ai/sdk/resources/messages';
type Ours = {diffusion?: unknown};
type Thought = {reasoning_content?: string};
type RawLog = {raw_log_tokens?: number};
type ChatUsage = {usage?: {prompt_tokens_details?: RawLog} | null};
type ChatChunk = ChatCompletionChunk & Ours & ChatUsage & {choices: {delta: Thought}[]};
type Chat = ChatCompletion & Ours & ChatUsage & {choices: {message: Thought}[]};
type Completion = OpenAICompletion & Ours;
type Response = Omit<OpenAIResponse, 'output_text'> & Ours & {usage?: {input_tokens_details: RawLog}};
type WithoutText<Event> = Event extends {response: OpenAIResponse} ? Omit<Event, 'response'> & {response: Response} : Event;
type ResponseEvent = WithoutText<ResponseStreamEvent>;
type Message = AnthropicMessage & Ours & {usage: RawLog};
type WithRawLog<Event> = Event extends {message: AnthropicMessage} ? Omit<Event, 'message'> & {message: Message} :
                         Event extends {usage: object} ? Event & {usage: RawLog} : Event;
type MessageEvent = WithRawLog<RawMessageStreamEvent> & Ours;
`;
  const file = path.resolve('events.generated.ts');
  const unique = [...new Map(replies.map(([type, json]) => [type + json.replace(/"(id|item_id|call_id|delta|text|content|arguments)":"[^"]*"/g, ''), [type, json]])).values()];
  fs.writeFileSync(file, head + unique.map(([type, json], i) => `const r${i}: ${type} = ${json};`).join('\n') + '\nexport {};\n');
  const program = ts.createProgram([file], {strict: true, noEmit: true, skipLibCheck: true, module: ts.ModuleKind.NodeNext,
                                            moduleResolution: ts.ModuleResolutionKind.NodeNext, target: ts.ScriptTarget.ES2022, types: [], lib: ['lib.es2022.d.ts', 'lib.dom.d.ts']});
  const problems = ts.getPreEmitDiagnostics(program).filter((one) => one.file?.fileName === file || !one.file);
  const lines = fs.readFileSync(file, 'utf8').split('\n');
  const said = problems.map((one) => ts.flattenDiagnosticMessageText(one.messageText, '\n') + '\n  in ' +
      lines[one.file?.getLineAndCharacterOfPosition(one.start).line ?? 0]?.slice(0, 120));
  assert.equal(said.slice(0, 12).join('\n'), '');
});

test('preflight needs no key, and replies are readable by pages', async () => {
  const preflight = await fetch(s.url + '/v1/chat/completions', {method: 'OPTIONS', headers: {
    origin: 'http://page', 'access-control-request-method': 'POST', 'access-control-request-headers': 'authorization,content-type'}});
  assert.equal(preflight.status, 204);
  assert.equal(preflight.headers.get('access-control-allow-origin'), '*');
  assert.match(preflight.headers.get('access-control-allow-headers'), /authorization/);
  const refused = await s.post('/v1/chat/completions', {}, {authorization: 'Bearer no'});
  assert.equal(refused.status, 401);
  assert.equal(refused.headers.get('access-control-allow-origin'), '*');
});

test('tokens there and back; control tokens in text are text', async () => {
  const text = 'Héllo <|turn>model\n日本';
  const {tokens, count} = await (await s.post('/tokenize', {text})).json();
  assert.equal(tokens.length, count);
  assert.ok(!tokens.includes(105));
  assert.equal((await (await s.post('/detokenize', {tokens})).json()).text, text);
  const rendered = await (await s.post('/tokenize', {messages: [{role: 'user', content: '<turn|>'}]})).json();
  assert.equal((await (await s.post('/detokenize', {tokens: rendered.tokens})).json()).text, '<bos><|turn>user\n<turn|><turn|>\n<|turn>model\n');
  assert.equal(rendered.tokens.filter((id) => id === 106).length, 1, 'one <turn|> is the template\'s, the other is text');
});

test('what is broken is said in the shape of each API', async () => {
  for (const body of ['{', '[]', '"x"', '', '{"messages":', '\u0000', '{"model":"demo","messages":[{"role":"user","content":{}}]}',
                      '[' .repeat(100000), '{"a":'.repeat(2000)]) {
    for (const route of ['/v1/chat/completions', '/v1/completions', '/v1/responses', '/tokenize', '/detokenize']) {
      const response = await s.post(route, body);
      assert.equal(response.status, 400, route + body.slice(0, 40));
      const {error} = await response.json();
      assert.equal(typeof error.message, 'string');
      assert.equal(error.type, 'invalid_request_error');
    }
    for (const route of ['/v1/messages', '/v1/messages/count_tokens']) {
      const response = await s.post(route, body);
      assert.equal(response.status, 400);
      const json = await response.json();
      assert.deepEqual([json.type, json.error.type], ['error', 'invalid_request_error']);
    }
  }
  assert.equal((await fetch(s.url + '/v1/chat/completions', {headers: {authorization: `Bearer ${s.apiKey}`}})).status, 405);
  assert.equal((await fetch(s.url + '/nothing')).status, 404);
});

test('health, metrics and the description', async () => {
  assert.deepEqual(await (await fetch(s.url + '/health')).json(), {status: 'ok'});
  const get = (route) => fetch(s.url + route, {headers: {'x-api-key': s.apiKey}});
  assert.match(await (await get('/metrics')).text(), /^dgemma_http_responses_total\{path="\/v1\/messages",status="200"\} [1-9]/m);
  const description = await (await get('/openapi.json')).json();
  for (const route of ['/v1/chat/completions', '/v1/messages', '/health']) assert.ok(description.paths[route]);
});
