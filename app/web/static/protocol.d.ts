// The types of what the server sends: docs/protocol.md, and the schemas of /openapi.json.

export type Status = 'queued' | 'running' | 'waiting' | 'complete' | 'cancelled' | 'error'

type Json = Record<string, any>

export type Block = BlockStart & {
  text: string
  open?: boolean
  input?: any
  is_error?: boolean
  interrupted?: boolean
  notes?: any
  content?: any[]
  data?: any
  [member: string]: any
}

export type Round = {
  round: number
  attempt?: number
  stop_reason?: string | null
  usage: Json
  started_at?: string | null
  first_delta_at?: string | null
  sealed_at?: string | null
  [member: string]: any
}

/** A call that waits for a person. */
export type Action = {
  tool_use_id: string
  name: string
  type: 'client' | 'approval' | 'elicitation'
  input: any
  input_digest: string
  expires_at: string | null
  can_remember?: boolean
}

/** A call that waits, in the list over all chats. */
export type WaitingCall = {
  chat: string
  title: string | null
  turn: string
  tool_use_id: string
  name: string
  type: Action['type']
  input: string
  since: string
  expires_at: string | null
}

/** An approval that is remembered for a chat. */
export type Grant = {
  id: string
  tool: string
  when: Json | null
  created_at: string
  turn: string
  tool_use_id: string
}

export type TurnError = { type: string; message: string; request_id: string | null; details?: Json | null }

export type Turn = {
  id: string
  chat_id: string
  parent_id: string | null
  role: 'user' | 'assistant'
  status: Status
  model?: string | null
  attempt?: number
  stop_reason: string | null
  error: TurnError | null
  usage: Json
  cost?: number | null
  created_at: string
  started_at?: string | null
  ended_at?: string | null
  /** the turn that it is a copy of */
  forked_from?: string | null
  blocks: Block[]
  rounds: Round[]
  output?: any
  phase?: string | null
  actions: Action[]
  preliminary?: { tool_use_id: string; name: string; text: string; data: any }[]
  hook_failures?: number
  degraded: {
    what: string
    index: number | null
    tool: string | null
    round: number | null
    output_tokens: number | null
    estimated: boolean
    limit: number | null
    used: number | null
  }[]
  siblings?: string[] | null
  cursor?: string | null
}

export type Chat = {
  id: string
  title: string | null
  system_prompt: string | null
  settings: Json
  created_at: string
  updated_at: string
}

export type Exchange = { user_turn: Turn | null; assistant_turn: Turn; stream_url: string; steered: boolean }

// --- events ----------------------------------------------------------------------------------------------------------

type BlockStart = { index: number; round: number; type: string; id?: string; tool_use_id?: string; name?: string }
type TurnEnd = { stop_reason: string | null; usage: Json; degraded?: Turn['degraded'] }

type DataOfTurn = {
  turn_start: { chat: string; model: string; attempt: number; status: Status }
  round_start: { round: number; messages: number; answered: { tool_use_id: string; name: string; is_error: boolean }[] }
  block_start: BlockStart
  block_delta: { index: number; offset: number; text: string }
  block_stop: { index: number; [member: string]: any }
  round_stop: { round: number; stop_reason: string | null; usage: Json }
  reset: { attempt: number; index: number }
  action_required: { round: number; calls: Action[] }
  turn_complete: TurnEnd
  turn_cancelled: TurnEnd & { phase?: string }
  turn_error: TurnEnd & { error: TurnError }
  status: { stage?: 'processing' | 'streaming' | 'executing'; [member: string]: any }
  tool_progress: { tool_use_id: string; name: string; message: string }
  tool_output: { tool_use_id: string; name: string; text: string; data?: any }
  retry: { error: string; message: string; seconds: number; model: string; tries: number }
  access_ended: { status: number; detail: string }
}

type DataOfChat = {
  chat: Chat
  turn: { turn: string; parent_id: string | null; role: 'user' | 'assistant'; created_at: string; blocks?: Block[] }
  turns_deleted: { turns: string[] }
  chat_deleted: object
}

type DataOfFeed = {
  chat: Chat
  chat_deleted: { id: string }
  turn: { chat: string; turn: string; role: 'assistant'; status: Status; stop_reason: string | null; waiting: number }
  reset: object
  access_ended: { status: number; detail: string }
}

type EventOf<Data, More = object> = {
  [Name in keyof Data]: { id?: string; event: Name; data: Data[Name] & More }
}[keyof Data]

/** An event of a turn. Notices (`status`, `tool_progress`, `tool_output`, `retry`, `access_ended`) have no id. The stream of a chat adds `turn`. */
export type TurnEvent = EventOf<DataOfTurn, { turn?: string }>
export type ChatEvent = EventOf<DataOfTurn, { turn: string }> | EventOf<DataOfChat>
/** An event of the owner's feed: the whole state of its chat or turn. */
export type FeedEvent = EventOf<DataOfFeed>

/** An event of any stream. Without data, it only moves the cursor. */
export type ServerEvent = { id?: string; event: string; data: any }

export type FollowOptions = {
  cursor?: string | null
  signal?: AbortSignal
  connection?: (state: 'open' | 'lost') => void
}
