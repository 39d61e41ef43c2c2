// A program in TypeScript that uses the packages: it is compiled, not run.
import { useChat as useSdkChat } from '@ai-sdk/react'
import { TurnstreamChatTransport } from '@turnstream/ai-sdk'
import { apply, Client, type Turn } from '@turnstream/client'
import { useChat, useFeed } from '@turnstream/react'

const client = new Client({ token: async () => 'token' })

export async function answer(text: string): Promise<Turn> {
  const tools = ['weather', { type: 'client' as const, name: 'confirm', description: 'Asks.', input_schema: {} }]
  const { assistant_turn: turn } = await client.say(null, text, {
    model: 'm',
    tools,
    chat: { settings: { labels: {} } },
  })
  // @ts-expect-error: no message has this member
  void client.say(turn.chat_id, text, { modle: 'm' })
  // @ts-expect-error: a denial has no input
  void client.act(turn.chat_id, turn.id, [{ type: 'deny', tool_use_id: 'a', input_digest: 'b', input: {} }])
  for await (const event of client.follow(turn.chat_id, turn.id)) {
    if (event.event === 'turn_error') throw new Error(event.data.error.message)
    // @ts-expect-error: no event has this name
    if (event.event === 'finished') break
    apply(turn, event)
  }
  return turn
}

export function Page({ id }: { id: string }): string {
  const { turns, running, send, act } = useChat(client, id, { suspense: true })
  const { chats } = useFeed(client)
  const sdk = useSdkChat({ transport: new TurnstreamChatTransport({ body: { turnstream: { model: 'm' } } }) })
  const [ask] = running?.actions ?? []
  if (running && ask)
    void act(running, [{ type: 'approve', tool_use_id: ask.tool_use_id, input_digest: ask.input_digest }])
  void send('Hello')
  // @ts-expect-error: a turn has no text of its own
  void turns[0].text
  return `${chats[0]?.state} ${turns.at(-1)?.blocks[0]?.text} ${sdk.status}`
}
