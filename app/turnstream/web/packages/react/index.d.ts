/**
 * A chat, and what can be done with it. With null as `id` it begins with the first message.
 * @param {Client} client the same at each rendering
 * @param {string | null} id
 * @param {object} [options]
 * @param {Page} [options.page] of the turns, as it was read on the server
 * @param {boolean} [options.suspense] suspends the component until there are turns to show
 */
export function useChat(client: Client, id: string | null, { page, suspense }?: {
    page?: Page | undefined;
    suspense?: boolean | undefined;
}): {
    stop: () => Promise<undefined>;
    readOlder: () => Promise<any>;
    /**
     * Sends a message. `options` are members of its body: `model`, `tools`, `on_busy`, …
     * @param {string} text @param {MessageOptions} [options] @returns {Promise<Exchange>}
     */
    send(text: string, options?: MessageOptions): Promise<Exchange>;
    /** Sends another text in place of a message. @param {Turn} turn @param {string} text @returns {Promise<Exchange>} */
    edit: (turn: Turn, text: string) => Promise<Exchange>;
    /**
     * Generates another answer.
     * @param {Turn} turn @param {AnswerOptions} [options] @returns {Promise<Exchange>}
     */
    regenerate: (turn: Turn, options?: AnswerOptions) => Promise<Exchange>;
    /** Answers calls that wait. @param {Turn} turn @param {Decision[]} decisions */
    act: (turn: Turn, decisions: Decision[]) => Promise<Turn>;
    id: string | null;
    running: Turn | null;
    status: "loading" | "ready" | "deleted" | "failed";
    chat: import("@turnstream/client").Chat | null;
    /**
     * the path, oldest first
     */
    turns: Turn[];
    /**
     * of the page of older turns; null at the root
     */
    next: string | null;
    /**
     * the last notice about an answer, until its next event
     */
    notice: import("@turnstream/client").TurnEvent | null;
    connection: "open" | "lost";
    error: Error | null;
};
/**
 * The chats of the owner: the newest first, each with what its answers do.
 * @param {Client} client the same at each rendering @returns {FeedState}
 */
export function useFeed(client: Client): FeedState;
import type { Client } from '@turnstream/client';
import type { Page } from './chat.js';
import type { MessageOptions } from '@turnstream/client';
import type { Exchange } from '@turnstream/client';
import type { Turn } from '@turnstream/client';
import type { AnswerOptions } from '@turnstream/client';
import type { Decision } from '@turnstream/client';
import type { FeedState } from './feed.js';
