// The page's client module as a client of the conformance kit: `node conformance.mjs URL` goes through all scenarios.

import { apply, Client, hasEnded, Refused } from '../../app/turnstream/web/static/turnstream.js'

const [url] = process.argv.slice(2)
const client = new Client({ base: url, token: () => 'secret' })

async function assembled({ kind, chat, turn: id }) {
  let turn = { blocks: [], rounds: [], actions: [] }
  try {
    if (kind === 'post') {
      const exchange = await client.say(chat, 'When is high tide?')
      id = exchange.assistant_turn.id
      turn = exchange.assistant_turn
    }
    await follow(turn, chat, id)
    if (!hasEnded(turn)) turn = await client.turn(chat, id)
  } catch (error) {
    if (!(error instanceof Refused)) throw error
    if (error.status === 400) await follow((turn = await client.turn(chat, id)), chat, id)
  }
  return turn
}

async function follow(turn, chat, id) {
  for await (const event of client.follow(chat, id, { cursor: turn.cursor })) apply(turn, event)
}

const scenarios = await client.request('GET', '/scenarios')
await Promise.all(
  scenarios.map(async (scenario) => client.request('POST', `/reports/${scenario.chat}`, await assembled(scenario))),
)
