/**
 * The chat of a client, the same for all components. A page of its turns is taken where it was read before, on the server.
 * @param {Client} client @param {string} id @param {Page} [page]
 */
export function chatStore(client: Client, id: string, page?: Page): any;
/**
 * as `GET /api/chats/{chat}/turns` returns it
 */
export type Page = {
    turns: Turn[];
    next: string | null;
    cursor: string;
};
export type ChatState = {
    status: "loading" | "ready" | "deleted" | "failed";
    chat: Chat | null;
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
    notice: TurnEvent | null;
    connection: "open" | "lost";
    error: Error | null;
};
import type { Client } from '@turnstream/client';
import type { Turn } from '@turnstream/client';
import type { Chat } from '@turnstream/client';
import type { TurnEvent } from '@turnstream/client';
