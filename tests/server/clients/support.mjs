// What the tests of all clients share: where the server is, and what the demo model can do.
import assert from 'node:assert/strict';

export const url = process.env.DGEMMA_URL;
export const apiKey = process.env.DGEMMA_KEY;
assert.ok(url && apiKey, 'run.py starts the server and says where it is');

export const question = 'What is the capital of France?';
export const answer = 'The capital of France is Paris.';
export const counting = 'Count from 1 to 12.';
export const hard = 'What is 730 + 351?';
export const sum = '1081';
export const weatherQuestion = 'How is the weather in Suva?';

export const weatherSchema = {
  type: 'object',
  properties: {city: {type: 'string', description: 'The city'}},
  required: ['city'],
};
export const weatherText = 'Get the weather of a city';

// A raw request, for what a client library hides.
export async function post(path, body, headers = {}) {
  return fetch(url + path, {
    method: 'POST',
    headers: {'content-type': 'application/json', authorization: `Bearer ${apiKey}`, ...headers},
    body: typeof body === 'string' ? body : JSON.stringify(body),
  });
}

// The events of a stream: [{event, data}], comments left out.
export function eventsOf(text) {
  return text.split('\n\n').filter(Boolean).map((block) => {
    const out = {event: null, data: ''};
    for (const line of block.split('\n')) {
      if (line.startsWith('event: ')) out.event = line.slice(7);
      else if (line.startsWith('data: ')) out.data += line.slice(6);
      else assert.ok(line.startsWith(':'), `a line that is none of SSE: ${line}`);
    }
    return out;
  }).filter((event) => event.data);
}

// Requests that the server works on now, /metrics itself not counted.
export async function inFlight() {
  const text = await (await fetch(url + '/metrics', {headers: {authorization: `Bearer ${apiKey}`}})).text();
  const gauge = (name) => Number(text.match(new RegExp(`^dgemma_${name}(?:\\{[^}]*\\})? (\\S+)$`, 'm'))[1]);
  return gauge('running') + gauge('queued');
}

// Waits until nothing runs: a request that was aborted is no longer worked on.
export async function idle(seconds = 10) {
  const end = Date.now() + seconds * 1000;
  while ((await inFlight()) > 0) {
    assert.ok(Date.now() < end, 'an aborted request still runs');
    await new Promise((done) => setTimeout(done, 20));
  }
}
