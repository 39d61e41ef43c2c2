// The types of what the server sends (docs/protocol.md), under the names that clients use.

import type { components } from './schema.d.ts'

/** Values of which the schemas say nothing may be used as what they are. */
type Loose<Value> = unknown extends Value ? any : Value extends object ? Members<Value> : Value
type Members<Value> = { [Member in keyof Value]: Loose<Value[Member]> }

type Schemas = components['schemas']

export interface Turn extends Members<Schemas['TurnOut']> {}
export type Status = Turn['status']
export interface Block extends Members<Schemas['BlockOut']> {}
export interface Round extends Members<Schemas['RoundOut']> {}
export interface TurnError extends Members<Schemas['ErrorOut']> {}
export interface Exchange extends Members<Schemas['ExchangeOut']> {}
/** A message that no model call has received. */
export interface QueueEntry extends Members<Schemas['QueueEntryOut']> {}
export type QueueChange = Loose<Schemas['QueueChange']>
export interface Chat extends Members<Schemas['ChatOut']> {}
/** A call that waits for a person. */
export interface Action extends Members<Schemas['WantedOut']> {}
/** A call that waits, in the list over all chats. */
export interface WaitingCall extends Members<Schemas['WaitingOut']> {}
/** An approval that is remembered for a chat. */
export interface Grant extends Members<Schemas['GrantOut']> {}

/** An event of a turn. Notices (`status`, `tool_progress`, `tool_output`, `retry`, `access_ended`, `caught_up`) have no id. The stream of a chat adds `turn`. */
export type TurnEvent = Loose<Schemas['StreamEvent']> & { data: { turn?: string } }
export type ChatEvent = Loose<Schemas['ChatStreamEvent']>
/** An event of the owner's feed: the whole state of its chat or turn. */
export type FeedEvent = Loose<Schemas['FeedEvent']>
/** An event of any stream. Without data, it only moves the cursor. */
export type ServerEvent = { id?: string; event: string; data: any }

/** The answer to a call that waits. */
export type Decision = Loose<Schemas['ActionsIn']['actions'][number]>
/** Members of the request that begins an answer. */
export type AnswerOptions = Loose<Schemas['TurnOptions']>
/** Members of the request that sends a message. */
export type MessageOptions = Partial<Loose<Omit<Schemas['NewTurnInNewChat'], 'parent_id'>>> & {
  parent_id?: string | null
}

export type FollowOptions = {
  cursor?: string | null
  caughtUp?: boolean
  signal?: AbortSignal
  connection?: (state: 'open' | 'lost') => void
}
