import type { AnswerOptions, Block, ChatEvent, Decision, Exchange, FeedEvent, FollowOptions } from './protocol.d.ts';
import type { MessageOptions, QueueChange, QueueEntry, ServerEvent, Status, Turn, TurnEvent } from './protocol.d.ts';
/** @param {{status: Status}} turn */
export declare const hasEnded: (turn: {
    status: Status;
}) => boolean;
/**
 * The blocks, a text that was cut off as one with the text right behind it, which goes on in mid-sentence.
 * @param {Block[]} blocks
 */
export declare function joined(blocks: Block[]): Block[];
/**
 * A request that the server refused: `status`, `message`, in `code` the same for programs, in `errors` the fields that are
 * wrong, in `retryAfter` the seconds after which it may be repeated, where the server names them, and in `requestId` the id
 * by which its log names the request.
 */
export declare class Refused extends Error {
    status: number;
    code: string | null;
    requestId: string | null;
    errors: any[];
    retryAfter: number;
    /**
     * @param {number} status
     * @param {{title?: string, detail?: string, code?: string, errors?: any[], request_id?: string}} problem
     * @param {number} retryAfter
     */
    constructor(status: number, problem?: {
        title?: string;
        detail?: string;
        code?: string;
        errors?: any[];
        request_id?: string;
    }, retryAfter?: number);
}
export declare class Client {
    #private;
    base: string;
    credentials: RequestCredentials | undefined;
    token: () => string | null | Promise<string | null>;
    renew: (() => unknown) | undefined;
    /** @type {Promise<unknown> | null} */
    renewing: Promise<unknown> | null;
    /**
     * @param {object} options
     * @param {string} [options.base] address of the server; by default that of the page
     * @param {() => string | null | Promise<string | null>} [options.token] returns the bearer token, or null for none
     * @param {() => unknown} [options.renew] gets a new token for `token` to return, when the server refuses the one it has
     * @param {RequestCredentials} [options.credentials] `include`: cookies are sent to a server of another origin too
     */
    constructor({ base, token, renew, credentials }?: {
        base?: string;
        token?: () => string | null | Promise<string | null>;
        renew?: () => unknown;
        credentials?: RequestCredentials;
    });
    /**
     * Returns the JSON of the response, a Blob for another type, null for 204. Throws Refused, and the TypeError of fetch
     * without a connection.
     * @param {string} method @param {string} path @param {any} [body]
     * @param {{key?: string, signal?: AbortSignal}} [options] `key`: an Idempotency-Key
     * @returns {Promise<any>}
     */
    request(method: string, path: string, body?: any, { key, signal }?: {
        key?: string;
        signal?: AbortSignal;
    }): Promise<any>;
    /**
     * `request`, repeated until the server answers. One Idempotency-Key for all tries keeps it from acting twice.
     * @param {string} method @param {string} path @param {any} [body] @param {{signal?: AbortSignal}} [options]
     */
    insist(method: string, path: string, body?: any, { signal }?: {
        signal?: AbortSignal;
    }): Promise<any>;
    /**
     * Sends `text` to a chat, or with null to a new one. `options`: parent_id, on_busy, model, tools, chat, blocks, …
     * @param {string | null} chat @param {string} text @param {MessageOptions} options
     * @returns {Promise<Exchange>}
     */
    say(chat: string | null, text: string, options?: MessageOptions): Promise<Exchange>;
    /** Sends `text` into the answer that is running. @param {string} chat @param {string} text */
    steer(chat: string, text: string): Promise<Exchange>;
    /**
     * @param {string} chat @param {string} turn @param {AnswerOptions} options
     * @returns {Promise<Exchange>}
     */
    regenerate(chat: string, turn: string, options?: AnswerOptions): Promise<Exchange>;
    /**
     * Copies a turn as a branch beside it, or with `into: 'chat'` the path to it into a new chat. `block`: the last block.
     * @param {string} chat @param {string} turn @param {{into?: 'branch' | 'chat', block?: number, title?: string}} options
     * @returns {Promise<Exchange>}
     */
    fork(chat: string, turn: string, options?: {
        into?: 'branch' | 'chat';
        block?: number;
        title?: string;
    }): Promise<Exchange>;
    /**
     * Deletes a turn and all that follow it.
     * @param {string} chat @param {string} turn @returns {Promise<{deleted: string, turns: number}>}
     */
    deleteTurn(chat: string, turn: string): Promise<{
        deleted: string;
        turns: number;
    }>;
    /**
     * The messages of a chat that no model call has received.
     * @param {string} chat @returns {Promise<QueueEntry[]>}
     */
    queue(chat: string): Promise<QueueEntry[]>;
    /**
     * Edits (`blocks`), moves (`after`) or converts (`kind`) a message that waits. Throws Refused with the status 409 once it
     * is delivered, or has another version.
     * @param {string} chat @param {string} entry @param {QueueChange} change @returns {Promise<QueueEntry>}
     */
    changeQueued(chat: string, entry: string, change: QueueChange): Promise<QueueEntry>;
    /**
     * Takes a message out of the queue, for good. Throws Refused as `changeQueued` does.
     * @param {string} chat @param {string} entry @param {string} version @returns {Promise<{withdrawn: string}>}
     */
    withdraw(chat: string, entry: string, version: string): Promise<{
        withdrawn: string;
    }>;
    /** @param {string} chat @param {string} turn @returns {Promise<Turn>} */
    cancel(chat: string, turn: string): Promise<Turn>;
    /**
     * Stops a call that runs in the background. The answer continues with its result.
     * @param {string} chat @param {string} turn @param {string} call @returns {Promise<Turn>}
     */
    cancelCall(chat: string, turn: string, call: string): Promise<Turn>;
    /**
     * Answers calls that wait: `{type: 'result' | 'approve' | 'deny' | 'answer', tool_use_id, …}`.
     * @param {string} chat @param {string} turn @param {Decision[]} actions @returns {Promise<Turn>}
     */
    act(chat: string, turn: string, actions: Decision[]): Promise<Turn>;
    /** @param {string} chat @param {string} turn @returns {Promise<Turn>} */
    turn(chat: string, turn: string): Promise<Turn>;
    /**
     * The events of a turn after `cursor`, to its last one. With `caughtUp` each connection has a notice `caught_up` behind
     * what there was, unless the turn ends there.
     * @param {string} chat @param {string} turn @param {FollowOptions} [options]
     * @returns {AsyncGenerator<TurnEvent, void>}
     */
    follow(chat: string, turn: string, options?: FollowOptions): AsyncGenerator<TurnEvent, void>;
    /**
     * The events of a chat after `cursor`: its changes, new turns, and the events of all that run. Ends when it is deleted.
     * `caughtUp` as for a turn.
     * @param {string} chat @param {FollowOptions} [options]
     * @returns {AsyncGenerator<ChatEvent, void>}
     */
    followChat(chat: string, options?: FollowOptions): AsyncGenerator<ChatEvent, void>;
    /**
     * The events of all chats of the owner after `cursor`, without end: chats made, changed, deleted, turns begun, waiting,
     * ended. `cursor` is that of `GET /api/chats`. After `reset` the list of chats must be read again.
     * @param {FollowOptions} [options]
     * @returns {AsyncGenerator<FeedEvent, void>}
     */
    feed(options?: FollowOptions): AsyncGenerator<FeedEvent, void>;
    /**
     * What operators watch, without end, for a token with the scope `admin`: `now`, `hour` and `spend`, each whole, and again
     * when it has changed.
     * @param {FollowOptions} [options]
     * @returns {AsyncGenerator<ServerEvent, void>}
     */
    overview(options?: FollowOptions): AsyncGenerator<ServerEvent, void>;
    /**
     * The events of one connection, to its end.
     * @param {string} path @param {FollowOptions} [options]
     * @returns {AsyncGenerator<ServerEvent, void>}
     */
    connect(path: string, { cursor, signal, connection }?: FollowOptions): AsyncGenerator<ServerEvent, void>;
}
/**
 * Applies an event to a turn as `GET …/turns/{turn}` returns it. An unknown event changes nothing. Until the turn is read
 * again, the times of its rounds are those of this clock.
 * @param {Turn} turn @param {TurnEvent} event @param {() => string} now
 */
export declare function apply(turn: Turn, { event, data: { turn: _, ...rest } }: TurnEvent, now?: () => string): void;
/** A name for a request, by which the server recognises it when it is repeated. */
export declare function newKey(): string;
/**
 * Parses a body of server-sent events. An event that was cut off at the end is left out.
 * @param {ReadableStream<Uint8Array>} body @param {() => void} onBytes called for each chunk, comments included
 * @returns {AsyncGenerator<ServerEvent, void>}
 */
export declare function parseEvents(body: ReadableStream<Uint8Array>, onBytes?: () => void): AsyncGenerator<ServerEvent, void>;
/** Milliseconds before the next try: doubled with each one, with jitter so that clients do not return all at once. */
export declare function retryDelay(/** @type {number} */ tries: number, random?: number): number;
/**
 * Whether a request that failed so may succeed later: the server could not be reached, or is not ready.
 * @param {unknown} error
 */
export declare const isPassing: (error: unknown) => boolean;
/**
 * Whether a stream failed because its cursor is refused, as after the server went back to a backup: what was read before is
 * to be read anew.
 * @param {unknown} error
 */
export declare const isStale: (error: unknown) => boolean;
/**
 * Waits for the retry delay, or for as long as the refusal `error` names; shorter when the network comes back or the page is
 * shown again.
 * @param {number} tries @param {AbortSignal} [signal] @param {any} [error]
 */
export declare function pause(tries: number, signal?: AbortSignal, error?: any): Promise<any>;
